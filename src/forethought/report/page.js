// Hovering (or focusing and pressing an arrow key on) a chart shows its nearest point. A picture has
// no value that a screen reader could read out after a key: with this script a chart is a slider.
for (const chart of document.querySelectorAll("svg.chart")) {
  const points = JSON.parse(chart.dataset.points);
  const dot = chart.querySelector(".dot"), tip = chart.querySelector(".tip");
  let at = points.length - 1;
  const say = () => {
    chart.setAttribute("aria-valuenow", at + 1);
    chart.setAttribute("aria-valuetext", points[at][2]);
  };
  chart.setAttribute("role", "slider");
  chart.setAttribute("aria-valuemin", 1);
  chart.setAttribute("aria-valuemax", points.length);
  say();
  const show = (next) => {
    at = Math.max(0, Math.min(points.length - 1, next));
    const [x, y, text] = points[at];
    say();
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
    const next = { ArrowLeft: at - 1, ArrowDown: at - 1, ArrowRight: at + 1, ArrowUp: at + 1,
      Home: 0, End: points.length - 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    show(next);
  });
}
// A table that is wider than the screen is scrolled with the keyboard, too.
const reach = () => {
  for (const wide of document.querySelectorAll(".wide")) {
    if (wide.scrollWidth > wide.clientWidth + 1) wide.tabIndex = 0;
    else wide.removeAttribute("tabindex");
  }
};
addEventListener("resize", reach);
reach();
