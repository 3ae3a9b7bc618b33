"""The planner as a local web page: sliders for the settings, certified numbers as the result."""
