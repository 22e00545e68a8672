"""Pages for people: one file each, that works from disk without network, however hostile what a model wrote.

    page.py          a template, its styles, its scripts and its data → one file with a content security policy; data is JSON that
                     nothing can break out of, or packed blocks that are opened on demand
    templates/       base.html.j2 (the frame), components.html.j2 (scores, validity, gates, tables, disclosures), one file a page
    static/          base.css, base.js (no build step), one script a page

**How a page is kept safe.** Templates escape whatever they show (autoescape), and control and bidi characters are shown by
their code. Scripts set text, never markup. The policy allows this page's own style and script by their hashes and pictures
from data URLs, nothing else: no network, no inline handler, no form, no frame; browsers that know Trusted Types refuse markup
made of text altogether. So there are no `style` attributes either: SVG attributes and classes say what is as wide as what.
"""
