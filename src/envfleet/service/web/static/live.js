"use strict";
// Asks for the leaderboard's table every few seconds while somebody looks; the server answers 304 if nothing changed.
(() => {
  const EVERY_MS = 3000;
  const MOST_MS = 60000;
  const board = document.getElementById("board");
  const state = document.getElementById("live-state");
  const told = state.textContent;
  let known = null;
  let waitMs = EVERY_MS;

  const values = () =>
    new Map([...board.querySelectorAll("tr[data-key]")].map((row) => [row.dataset.key, row.querySelector("[data-value]").textContent]));

  function show(text) {
    const before = values();
    board.innerHTML = text; // the server has escaped it
    for (const row of board.querySelectorAll("tr[data-key]")) {
      const isNew = before.get(row.dataset.key) !== row.querySelector("[data-value]").textContent;
      row.classList.toggle("changed", isNew);
    }
  }

  async function refresh() {
    if (document.hidden) return;
    try {
      const response = await fetch(board.dataset.live, { redirect: "error" });
      if (!response.ok) throw new Error(response.statusText);
      const text = await response.text();
      if (known !== null && text !== known) show(text);
      known = text;
      waitMs = EVERY_MS;
      if (state.textContent !== told) state.textContent = told;
    } catch {
      waitMs = Math.min(2 * waitMs, MOST_MS);
      state.textContent = "The server does not answer: this is how it was a while ago. Trying again.";
    }
  }

  async function watch() {
    await refresh();
    setTimeout(watch, waitMs);
  }

  document.addEventListener("visibilitychange", refresh);
  watch();
})();
