// Hovering (or focusing and pressing an arrow key on) a chart shows its nearest point.
for (const chart of document.querySelectorAll("svg.chart")) {
  const points = JSON.parse(chart.dataset.points);
  const dot = chart.querySelector(".dot"), tip = chart.querySelector(".tip");
  let at = points.length - 1;
  const show = (next) => {
    at = Math.max(0, Math.min(points.length - 1, next));
    const [x, y, text] = points[at];
    dot.setAttribute("cx", x);
    dot.setAttribute("cy", y);
    tip.textContent = text;
    const width = chart.viewBox.baseVal.width, half = tip.getComputedTextLength() / 2;
    tip.setAttribute("x", Math.max(half, Math.min(width - half, x)));
    tip.setAttribute("y", y < 40 ? y + 22 : y - 12);
  };
  chart.addEventListener("pointermove", (event) => {
    const box = chart.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * chart.viewBox.baseVal.width;
    let best = 0;
    points.forEach((point, index) => {
      if (Math.abs(point[0] - x) < Math.abs(points[best][0] - x)) best = index;
    });
    show(best);
  });
  chart.addEventListener("pointerleave", () => { tip.textContent = ""; });
  chart.addEventListener("keydown", (event) => {
    if (event.key === "ArrowLeft") show(at - 1);
    if (event.key === "ArrowRight") show(at + 1);
  });
}
