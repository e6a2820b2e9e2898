// Live parts, times in the viewer's zone, theme, zoom.  Every page can be read without this file.
"use strict";

const html = document.documentElement;
const root = html.dataset.root || "";

// -- Times -------------------------------------------------------------------------------------------

const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
const exact = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });

function ago(moment, now) {
  const seconds = (now - moment) / 1000;
  const size = Math.abs(seconds);
  if (size < 1) return "now";
  const [length, unit] = UNITS.find(([length]) => size >= length);
  const number = Math.floor(size / length);
  return seconds < 0 ? `in ${number} ${unit}` : `${number} ${unit} ago`;
}

function tellTimes(within) {
  const now = Date.now();
  for (const element of within.querySelectorAll("time[datetime]")) {
    const moment = Date.parse(element.dateTime);
    const words = ago(moment, now);
    if (element.textContent !== words) element.textContent = words;
    if (!element.dataset.zoned) {
      element.title = exact.format(moment);
      element.dataset.zoned = "1";
    }
  }
}

// -- Live parts --------------------------------------------------------------------------------------

function keep(element) {
  // What the viewer did inside a part, to be done again when the part is replaced.
  const open = [...element.querySelectorAll("details[data-key]"), element]
    .filter((one) => one.matches("details[data-key]"))
    .map((one) => [one.dataset.key, one.open]);
  const scrolled = [...element.querySelectorAll(".canvas, .scroll, pre")].map((one) => [one.scrollLeft, one.scrollTop]);
  const focus = element.contains(document.activeElement) ? pathOf(document.activeElement) : null;
  return { open: new Map(open), scrolled, focus };
}

function pathOf(element) {
  if (element.id) return `#${CSS.escape(element.id)}`;
  const href = element.getAttribute("href");
  return href ? `[href="${CSS.escape(href)}"]` : element.localName;
}

function restore(element, kept) {
  for (const one of [...element.querySelectorAll("details[data-key]"), element]) {
    if (one.matches("details[data-key]") && kept.open.has(one.dataset.key)) one.open = kept.open.get(one.dataset.key);
  }
  element.querySelectorAll(".canvas, .scroll, pre").forEach((one, place) => {
    if (kept.scrolled[place]) [one.scrollLeft, one.scrollTop] = kept.scrolled[place];
  });
  if (kept.focus) {
    const again = element.matches(kept.focus) ? element : element.querySelector(kept.focus);
    if (again) again.focus({ preventScroll: true });
  }
}

function replacePart(id, text) {
  const element = document.getElementById(id);
  if (!element) return;
  if (element.contains(document.activeElement) && document.activeElement.matches("input, select, textarea")) return;
  const kept = keep(element);
  element.outerHTML = text;
  const fresh = document.getElementById(id);
  if (!fresh) return;
  restore(fresh, kept);
  prepare(fresh);
}

let source = null;

function listen() {
  if (!("version" in html.dataset) || source) return;
  const page = location.pathname.slice(root.length) + location.search;
  const query = new URLSearchParams({ page, version: html.dataset.version });
  source = new EventSource(`${root}/live?${query}`);
  const mark = document.getElementById("live-mark");
  source.onopen = () => {
    mark.hidden = false;
    mark.classList.add("on");
  };
  source.onerror = () => mark.classList.remove("on");
  source.onmessage = (event) => {
    const parts = Object.entries(JSON.parse(event.data));
    for (const [id, text] of parts) replacePart(id, text);
    html.dataset.version = "changed";
    const state = document.querySelector("#header .badge");
    const spoken = document.getElementById("spoken");
    if (state && parts.some(([id]) => id === "header")) spoken.textContent = `Now ${state.textContent.trim()}`;
  };
}

function rest() {
  if (source) source.close();
  source = null;
}

// -- Graphs ------------------------------------------------------------------------------------------

const ZOOMS = [0.25, 0.35, 0.5, 0.7, 0.85, 1, 1.25, 1.6, 2];
let zoom = 1;

function applyZoom(within) {
  for (const svg of within.querySelectorAll(".graph .dag")) {
    const box = svg.viewBox.baseVal;
    svg.setAttribute("width", box.width * zoom);
    svg.setAttribute("height", box.height * zoom);
  }
}

function fitGraph() {
  const canvas = document.getElementById("canvas");
  const svg = canvas && canvas.querySelector(".dag");
  if (!svg || svg.viewBox.baseVal.width <= canvas.clientWidth) return;
  zoom = ZOOMS.filter((one) => svg.viewBox.baseVal.width * one <= canvas.clientWidth).pop() || ZOOMS[0];
  zoom = Math.max(zoom, 0.5);
  applyZoom(document);
}

function drag(canvas) {
  let from = null;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button === 0 && !event.target.closest("a")) {
      from = [event.clientX + canvas.scrollLeft, event.clientY + canvas.scrollTop];
      canvas.classList.add("dragging");
    }
  });
  window.addEventListener("pointermove", (event) => {
    if (from) [canvas.scrollLeft, canvas.scrollTop] = [from[0] - event.clientX, from[1] - event.clientY];
  });
  window.addEventListener("pointerup", () => {
    from = null;
    canvas.classList.remove("dragging");
  });
}

// -- All of it ---------------------------------------------------------------------------------------

function prepare(within) {
  tellTimes(within);
  if (zoom !== 1) applyZoom(within.parentNode || document);
  for (const tools of within.querySelectorAll(".zoom")) tools.hidden = false;
  for (const canvas of within.querySelectorAll(".canvas")) drag(canvas);
  for (const range of within.querySelectorAll(".slider input[type=range]")) {
    range.addEventListener("change", () => range.form.requestSubmit());
    range.addEventListener("input", () => {
      range.form.querySelector("output").textContent = `${range.value} / ${range.max}`;
    });
  }
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-zoom]");
  if (!button) return;
  const place = ZOOMS.indexOf(zoom) + Number(button.dataset.zoom);
  zoom = ZOOMS[Math.min(Math.max(place, 0), ZOOMS.length - 1)];
  applyZoom(document);
});

document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !event.target.closest("input, textarea, select")) {
    const search = document.querySelector("input[type=search]");
    if (search) {
      event.preventDefault();
      search.focus();
    }
  }
});

const theme = document.getElementById("theme");
theme.hidden = false;
theme.addEventListener("click", () => {
  const dark = html.dataset.theme ? html.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  html.dataset.theme = dark ? "light" : "dark";
  try {
    localStorage.setItem("detent-theme", html.dataset.theme);
  } catch (error) {
    // Storage is not allowed: the choice holds for this page.
  }
});

prepare(document);
fitGraph();
// On a phone, the navigation and the tabs are wider than the screen: show the current one.
for (const here of document.querySelectorAll(".nav [aria-current], .tabs [aria-current]")) here.parentNode.scrollLeft = here.offsetLeft - (here.parentNode.clientWidth - here.offsetWidth) / 2;
setInterval(() => tellTimes(document), 1000);
document.addEventListener("visibilitychange", () => (document.hidden ? rest() : listen()));
window.addEventListener("pagehide", rest);
window.addEventListener("pageshow", listen);
listen();
