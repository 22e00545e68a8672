"""Projects to start from, one folder each, for `evalharness init`. Files end in `.in`, so that no tool takes them for this package's."""
