"""The planner in a browser, on one's own machine: sliders in, certified numbers out."""
