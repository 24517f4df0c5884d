"""Where answers lie: this process's memory, the shared file, Redis; and who of several proxies asks for one that none has."""
