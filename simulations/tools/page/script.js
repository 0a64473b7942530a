"use strict";
(() => {
  const story = JSON.parse(document.getElementById("story").textContent);
  const figure = document.getElementById("figure");
  const scrubber = document.getElementById("scrubber");
  const cursor = document.getElementById("cursor");
  const axis = document.getElementById("axis");
  const left = Number(figure.dataset.left), right = Number(figure.dataset.right), height = Number(figure.dataset.height);
  const events = [...document.querySelectorAll("#events tr")];
  const number = (element, name) => Number(element.dataset[name]);
  const timed = [...figure.querySelectorAll("[data-s]")];
  const marks = [...figure.querySelectorAll(".mark")];
  const labels = [...figure.querySelectorAll("[data-from]")];
  const words = [...figure.querySelectorAll("[data-word]")].sort((a, b) => number(a, "word") - number(b, "word"));
  const anchored = [...figure.querySelectorAll("[data-at]")];
  const view = { start: story.start, end: story.end };
  const NARROWEST = 0.0005;
  let now = story.violatedAt ?? story.end;
  let playing = null;

  const x = (at) => left + (right - left) * (at - view.start) / (view.end - view.start);

  // --- zoom -----------------------------------------------------------------------------------------------------

  function place() {
    for (const one of timed) {
      const from = x(number(one, "s"));
      if (one.tagName === "rect") {
        // Far outside of the view the numbers would be too large to draw with.
        const a = Math.max(from, left - 50), b = Math.min(x(number(one, "e")), right + 50);
        one.setAttribute("x", a);
        one.setAttribute("width", Math.max(b < a ? 0 : 1.5, b - a));
      } else {
        one.setAttribute("x1", from);
        one.setAttribute("x2", one.dataset.e ? x(number(one, "e")) : from);
      }
    }
    for (const one of marks) {
      const at = x(number(one, "x"));
      one.style.display = at < left || at > right ? "none" : "";
      one.setAttribute("transform", `translate(${at},${one.dataset.y})`);
    }
    for (const one of labels) {
      const from = Math.max(x(number(one, "from")), left), to = Math.min(x(number(one, "to")), right);
      const isShown = one.dataset.room ? to - from >= number(one, "room") : to > left && from < right;
      one.style.display = isShown ? "" : "none";
      one.setAttribute("x", from + 5);
    }
    for (const one of words) one.setAttribute("x", x(number(one, "word")) + 4);
    for (const one of anchored) {
      const at = x(number(one, "at")), isRight = at - left < 200;
      one.style.textAnchor = isRight ? "start" : "end";
      one.setAttribute("x", at + (isRight ? 6 : -6));
    }
    thinOut();
    drawAxis();
    placeCursor();
  }

  function thinOut() {
    // Words beside arrows are shown where they lie over no other.
    const ends = {};
    for (const one of words) {
      const at = Number(one.getAttribute("x")), end = at + one.textContent.length * 5.5 + 4;
      const fitsInside = one.dataset.room && x(number(one, "to")) - x(number(one, "word")) >= number(one, "room");
      const isFree = !fitsInside && at >= left && end <= right && at > (ends[one.dataset.lane] ?? 0);
      one.style.display = isFree ? "" : "none";
      if (isFree) ends[one.dataset.lane] = end;
    }
  }

  function drawAxis() {
    const size = view.end - view.start;
    let step = 1e-6;
    for (let exponent = -6, i = 0; size / step > 12; i++) {
      if (i % 3 === 2) exponent++;
      step = [2, 5, 1][i % 3] * 10 ** (exponent);
    }
    const decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    const parts = [];
    for (let n = Math.floor(view.start / step) + 1; n * step < view.end; n++) {
      const at = x(n * step);
      parts.push(`<line class="tick" x1="${at}" x2="${at}" y1="26" y2="${height - 20}"/>`);
      if (at < right - 20) parts.push(`<text class="tick" x="${at}" y="20">${(n * step).toFixed(decimals)} s</text>`);
    }
    axis.innerHTML = parts.join("");
  }

  function show(start, end) {
    const size = Math.min(Math.max(end - start, NARROWEST), story.end - story.start);
    const middle = (start + end) / 2;
    view.start = Math.min(Math.max(middle - size / 2, story.start), story.end - size);
    view.end = view.start + size;
    place();
  }

  function zoom(factor, at) {
    const share = (at - view.start) / (view.end - view.start);
    const size = (view.end - view.start) * factor;
    show(at - size * share, at + size * (1 - share));
  }

  const inView = (at) => Math.min(Math.max(at, view.start), view.end);

  // --- time -----------------------------------------------------------------------------------------------------

  function placeCursor() {
    const at = x(now);
    cursor.style.display = at < left || at > right ? "none" : "";
    cursor.setAttribute("x1", at);
    cursor.setAttribute("x2", at);
  }

  function frameAt(frames) {
    let found = null;
    for (const frame of frames) {
      if (frame[0] > now + 5e-7) break;
      found = frame;
    }
    return found;
  }

  function leaseLeft(until) {
    const rest = until - now;
    return rest >= 0 ? `, ${rest.toFixed(3)} s left` : `, over for ${(-rest).toFixed(3)} s`;
  }

  function tellStates() {
    for (const chip of document.querySelectorAll("#chips .chip")) {
      const frame = frameAt(story.frames[chip.dataset.lane] ?? []);
      chip.dataset.tone = frame ? frame[1] : "none";
      chip.querySelector("span").textContent = frame ? frame[2] + (frame[3] == null ? "" : leaseLeft(frame[3])) : "";
    }
  }

  function tellEvents() {
    let current = null;
    for (const row of events) {
      const isLater = number(row, "at") > now + 5e-7;
      row.classList.toggle("later", isLater);
      row.classList.remove("now");
      if (!isLater) current = row;
    }
    if (current === null) return;
    current.classList.add("now");
    const box = document.getElementById("events");
    box.scrollTop += current.getBoundingClientRect().top - box.getBoundingClientRect().top - box.clientHeight / 2;
  }

  function moveTo(at) {
    now = Math.min(Math.max(at, story.start), story.end);
    scrubber.value = Math.round((now - story.start) * 1e6);
    document.getElementById("now").textContent = `${now.toFixed(6)} s`;
    placeCursor();
    for (const one of timed) one.classList.toggle("future", number(one, "s") > now + 5e-7 && one.id !== "violation");
    for (const one of words) one.classList.toggle("future", number(one, "word") > now + 5e-7);
    for (const one of marks) one.classList.toggle("future", number(one, "x") > now + 5e-7);
    tellStates();
    tellEvents();
  }

  function nextMoment() { return story.moments.find((at) => at > now + 5e-7); }
  function previousMoment() { return story.moments.findLast((at) => at < now - 5e-7); }

  function step(at) {
    if (at === undefined) return false;
    moveTo(at);
    if (now < view.start || now > view.end) show(now - (view.end - view.start) / 2, now + (view.end - view.start) / 2);
    return true;
  }

  function stop() {
    clearInterval(playing);
    playing = null;
    document.getElementById("play").textContent = "play";
  }

  function play() {
    if (playing !== null) return stop();
    if (nextMoment() === undefined) moveTo(story.start);
    document.getElementById("play").textContent = "pause";
    playing = setInterval(() => { if (!step(nextMoment())) stop(); }, 160);
  }

  // --- hands ----------------------------------------------------------------------------------------------------

  const on = (id, action) => document.getElementById(id).addEventListener("click", action);
  on("zoom-in", () => zoom(0.5, inView(now)));
  on("zoom-out", () => zoom(2, inView(now)));
  on("fit", () => show(story.start, story.end));
  on("focus", () => { const half = (story.end - story.start) / 40; show(now - half, now + half); });
  on("previous", () => { stop(); step(previousMoment()); });
  on("next", () => { stop(); step(nextMoment()); });
  on("play", play);
  on("copy", async () => {
    const command = document.getElementById("command");
    getSelection().selectAllChildren(command);
    if (navigator.clipboard) await navigator.clipboard.writeText(command.textContent).catch(() => document.execCommand("copy"));
    else document.execCommand("copy");
    document.getElementById("copy").textContent = "copied";
  });
  scrubber.addEventListener("input", () => { stop(); moveTo(story.start + Number(scrubber.value) / 1e6); });
  scrubber.addEventListener("keydown", (event) => {
    const wanted = { ArrowLeft: previousMoment, ArrowDown: previousMoment, ArrowRight: nextMoment, ArrowUp: nextMoment }[event.key];
    if (!wanted) return;
    event.preventDefault();
    stop();
    step(wanted());
  });
  for (const row of events) {
    row.addEventListener("click", () => { stop(); step(number(row, "at")); });
    row.addEventListener("keydown", (event) => { if (event.key === "Enter") row.click(); });
  }

  function timeOf(event) {
    const box = figure.getBoundingClientRect();
    const at = (event.clientX - box.left) * figure.viewBox.baseVal.width / box.width;
    return view.start + (view.end - view.start) * (Math.min(Math.max(at, left), right) - left) / (right - left);
  }

  function meantBy(event) {
    // What lies under the pointer has its own instant; elsewhere it is that of the place.
    const mark = event.target.closest(".mark"), arrow = event.target.closest(".touch");
    return mark ? number(mark, "x") : arrow ? number(arrow, "s") : timeOf(event);
  }

  let grip = null;
  figure.addEventListener("pointerdown", (event) => { grip = { x: event.clientX, start: view.start, end: view.end, moved: false }; });
  addEventListener("pointermove", (event) => {
    if (grip === null || Math.abs(event.clientX - grip.x) < 4 && !grip.moved) return;
    grip.moved = true;
    const box = figure.getBoundingClientRect();
    const scale = (grip.end - grip.start) / ((right - left) * box.width / figure.viewBox.baseVal.width);
    const by = (grip.x - event.clientX) * scale;
    show(grip.start + by, grip.end + by);
  });
  addEventListener("pointerup", (event) => {
    if (grip !== null && !grip.moved && figure.contains(event.target)) { stop(); moveTo(meantBy(event)); }
    grip = null;
  });
  figure.addEventListener("dblclick", (event) => zoom(0.4, timeOf(event)));
  figure.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, timeOf(event));
  }, { passive: false });

  place();
  moveTo(now);
})();
