"""`map`: a picture of the node's network. Facts become a drawing, which is pure, and that becomes SVG or a page."""
