"""Results as pages: HTML and SVG that open from disk without a network. Formats only; every number arrives computed."""
