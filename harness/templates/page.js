(() => {
  const moments = [...document.querySelectorAll(".moment")];
  const scrub = document.getElementById("scrub"), said = document.getElementById("said");
  const list = document.querySelector(".steps");
  document.body.classList.add("js");
  document.querySelector(".controls").hidden = false;
  const last = moments.length - 1;
  let now = -1;
  function go(step, first) {
    step = Math.max(0, Math.min(last, step));
    if (step === now) return;
    now = step;
    moments.forEach((moment, i) => { moment.hidden = i !== step; });
    scrub.value = step;
    said.textContent = step ? `step ${step} of ${last}` : "before step 1";
    for (const cell of document.querySelectorAll(".grid .current")) cell.classList.remove("current");
    for (const cell of document.querySelectorAll(`.grid [data-step="${step}"]`)) cell.classList.add("current");
    for (const link of document.querySelectorAll(".steps a")) {
      if (+link.dataset.go !== step) { link.removeAttribute("aria-current"); continue; }
      link.setAttribute("aria-current", "step");
      list.scrollTop = link.offsetTop - list.clientHeight / 2;
    }
    const grid = document.querySelector(".grid"), head = document.querySelector(`.grid thead [data-step="${step}"]`);
    if (head) {
      const left = head.offsetLeft - grid.clientWidth / 2;
      if (Math.abs(grid.scrollLeft - left) > grid.clientWidth / 3) grid.scrollLeft = left;
    }
    if (!first) history.replaceState(null, "", `#step-${step}`);
  }
  scrub.addEventListener("input", () => go(+scrub.value));
  document.getElementById("back").addEventListener("click", () => go(now - 1));
  document.getElementById("on").addEventListener("click", () => go(now + 1));
  document.addEventListener("click", event => {
    const place = event.target.closest("[data-go], .grid [data-step]");
    if (!place) return;
    event.preventDefault();
    go(+(place.dataset.go ?? place.dataset.step));
  });
  document.addEventListener("keydown", event => {
    if (event.altKey || event.ctrlKey || event.metaKey || event.target === scrub) return;
    const step = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: last }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    go(step);
  });
  const asked = /^#step-(\d+)$/.exec(location.hash);
  go(asked ? +asked[1] : last, true);
})();
