// The theme, set before anything is drawn: the user's choice, or the system's theme.
"use strict";
const Theme = (() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const stored = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
  const listeners = [];
  let chosen = stored();
  const apply = () => {
    document.documentElement.dataset.theme = chosen || (dark.matches ? "dark" : "light");
    listeners.forEach((listener) => listener());
  };
  dark.addEventListener("change", apply);
  apply();
  return {
    get name() { return chosen; },
    // Toggles between the system's theme and the other one.
    next() {
      const other = dark.matches ? "light" : "dark";
      chosen = chosen ? null : other;
      try { chosen ? localStorage.setItem("theme", chosen) : localStorage.removeItem("theme"); } catch { /* not kept */ }
      apply();
    },
    onChange(listener) { listeners.push(listener); },
    color: (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim(),
  };
})();
