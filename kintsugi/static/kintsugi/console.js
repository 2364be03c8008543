// Keeps a page true while it stands open: every few seconds the parts marked data-live are fetched and exchanged.
// Forms lie outside those parts, so nothing that a person types is touched. When the server does not answer, the
// page says since when it shows old news.
"use strict";

(() => {
  const EVERY_MS = 5000;
  let freshAt = new Date();

  function parts(root) {
    return root.querySelectorAll("[data-live][id]");
  }

  function isBusy(part) {
    const selection = document.getSelection();
    return part.contains(document.activeElement) || (!selection.isCollapsed && part.contains(selection.anchorNode));
  }

  function exchange(fresh) {
    for (const part of parts(document)) {
      const next = fresh.getElementById(part.id);
      if (next && next.innerHTML !== part.innerHTML && !isBusy(part)) part.replaceChildren(...next.childNodes);
    }
  }

  function say(text) {
    let notice = document.getElementById("k-stale");
    if (!text) {
      if (notice) notice.remove();
      return;
    }
    if (!notice) {
      notice = document.createElement("p");
      notice.id = "k-stale";
      notice.className = "k-stale";
      notice.setAttribute("role", "alert");
      document.body.append(notice);
    }
    notice.textContent = text;
  }

  async function refresh() {
    if (document.hidden) return;
    try {
      const answer = await fetch(location.href, { headers: { "X-Requested-With": "live" } });
      if (answer.redirected) throw new Error("signed out");
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      exchange(new DOMParser().parseFromString(await answer.text(), "text/html"));
      freshAt = new Date();
      say("");
    } catch (error) {
      const why = error.message === "signed out" ? "You are signed out" : "The server does not answer";
      say(`${why}: this page is as of ${freshAt.toLocaleTimeString()}.`);
    }
  }

  document.addEventListener("DOMContentLoaded", () => {
    if (!parts(document).length) return;
    const every = Number(document.body.dataset.liveEvery) || EVERY_MS;
    setInterval(refresh, every);
    document.addEventListener("visibilitychange", refresh);
  });
})();
