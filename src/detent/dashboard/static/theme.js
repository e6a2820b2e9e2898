// Before the first paint: the theme that the viewer chose, if they did.
"use strict";
try {
  const chosen = localStorage.getItem("detent-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch (error) {
  // Storage is not allowed: the system's theme is used.
}
