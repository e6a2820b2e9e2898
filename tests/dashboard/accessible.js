() => {
  // What a screen reader needs: names, labels, scopes, landmarks, and ids that are there once.
  const problems = [];
  const tell = (what, element) => problems.push(`${what}: ${element.outerHTML.slice(0, 90)}`);
  const all = (selector) => [...document.querySelectorAll(selector)];
  const name = (element) => (element.getAttribute("aria-label") || element.textContent || element.title || "").trim();

  for (const one of all("a[href], button, summary")) if (!name(one)) tell("no name", one);
  for (const one of all("input:not([type=hidden]), select, textarea")) if (!one.labels.length) tell("no label", one);
  for (const one of all("svg")) {
    if (!one.closest("[aria-hidden=true], [aria-label], a") && !one.getAttribute("role")) tell("not described", one);
  }
  for (const one of all("th")) if (!one.scope) tell("no scope", one);
  for (const one of all("nav")) if (!one.getAttribute("aria-label")) tell("no name", one);
  for (const one of all(".canvas, .scroll")) if (one.tabIndex !== 0) tell("scrolls, and cannot be focused", one);
  const ids = all("[id]").map((one) => one.id);
  for (const id of new Set(ids)) if (ids.filter((one) => one === id).length > 1) problems.push(`twice: ${id}`);
  for (const landmark of ["main", "h1", "header.top"]) {
    if (all(landmark).length !== 1) problems.push(`not exactly one ${landmark}`);
  }
  if (!document.documentElement.lang) problems.push("no language");
  return problems;
}
