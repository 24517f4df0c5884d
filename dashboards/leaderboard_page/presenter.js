// The presenter's page listens to the keys of a keyboard and of a clicker, and has one button for a finger. What a press
// does is the server's to decide, which knows who the presenter is.

const KEYS = new Set([" ", "Enter", "ArrowRight", "ArrowDown", "PageDown"]);
const WIDGETS = "input, textarea, select, [role=combobox], [role=switch], [role=slider], [contenteditable]";
const PRESSED = new Set([" ", "Enter"]);

export default function ({ data, parentElement, setTriggerValue }) {
  let button = parentElement.querySelector(".presenter");
  if (!button) {
    button = document.createElement("button");
    button.className = "presenter";
    parentElement.append(button);
    const listen = (event) => {
      if (!button.isConnected) return window.removeEventListener("keydown", listen);
      if (!KEYS.has(event.key) || event.repeat || event.ctrlKey || event.altKey || event.metaKey) return;
      // whoever sets a control, or presses what has the focus, means that
      if (event.target.closest?.(WIDGETS) || (PRESSED.has(event.key) && event.target.closest?.("a, button, summary"))) return;
      event.preventDefault();
      button.press();
    };
    window.addEventListener("keydown", listen);
    button.onclick = () => {
      button.blur();
      button.press();
    };
  }
  button.press = () => setTriggerValue("next", true);
  button.textContent = data.trouble || `Uncover the next place (${data.left} left): space, arrow or Page Down`;
}
