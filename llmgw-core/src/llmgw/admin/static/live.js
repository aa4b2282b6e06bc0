// Keeps a reader's place while htmx swaps the live part of a page.
"use strict";

(() => {
  const live = () => document.getElementById("live");
  const isReading = () => {
    const chosen = document.getSelection();
    const part = live();
    return part && ((chosen && !chosen.isCollapsed && part.contains(chosen.anchorNode)) ||
      part.querySelector("input:focus, select:focus, textarea:focus"));
  };
  const places = () => [...live().querySelectorAll("pre, [tabindex]")];
  let kept = null;

  // A text that is being marked, or a form being filled in, is left alone until later.
  document.addEventListener("htmx:beforeRequest", (event) => {
    if (event.target.id === "live" && isReading()) event.preventDefault();
  });

  document.addEventListener("htmx:beforeSwap", (event) => {
    if (event.target.id !== "live") return;
    const links = [...live().querySelectorAll("a, button, summary")];
    kept = {
      open: [...live().querySelectorAll("details")].map((item) => item.open),
      places: places().map((item) => ({
        top: item.scrollTop,
        atEnd: item.scrollHeight - item.scrollTop - item.clientHeight < 4,
      })),
      focus: links.indexOf(document.activeElement),
    };
  });

  document.addEventListener("htmx:afterSwap", () => {
    if (!kept || !live()) return;
    const { open, places: tops, focus } = kept;
    kept = null;
    live().querySelectorAll("details").forEach((item, index) => { item.open = open[index] ?? false; });
    places().forEach((item, index) => {
      if (!tops[index]) return;
      item.scrollTop = tops[index].atEnd ? item.scrollHeight : tops[index].top;
    });
    live().querySelectorAll("a, button, summary")[focus]?.focus({ preventScroll: true });
  });

  // A log is read from its end.
  document.querySelectorAll("pre.log").forEach((item) => { item.scrollTop = item.scrollHeight; });
})();
