// The presenter's page listens to the keys of a keyboard and of a clicker, and has one button for a finger. What a press
// does is the server's to decide, which knows who the presenter is.

const KEYS = new Set([" ", "Enter", "ArrowRight", "ArrowDown", "PageDown"]);
const WIDGETS = "input, textarea, select, button, a, [role=combobox], [role=switch], [role=slider], [contenteditable]";

export default function ({ data, parentElement, setTriggerValue }) {
  let button = parentElement.querySelector(".presenter");
  if (!button) {
    button = document.createElement("button");
    button.className = "presenter";
    parentElement.append(button);
    const listen = (event) => {
      if (!button.isConnected) return window.removeEventListener("keydown", listen);
      if (!KEYS.has(event.key) || event.repeat || event.ctrlKey || event.altKey || event.metaKey) return;
      if (event.target.closest?.(WIDGETS)) return; // whoever sets a control means that
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
