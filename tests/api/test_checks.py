from evalharness.api.checks import excerpt, first_names, short_hash


def test_texts_and_names_beyond_the_length_are_cut_and_marked():
    assert excerpt("abcde", 5) == "abcde"
    assert excerpt("abcdef", 5) == "abcde…"
    assert excerpt("a" * 3005, 5, count_rest=True) == "aaaaa… (3,000 more characters)"
    assert excerpt("abcde", 5, count_rest=True) == "abcde"
    assert first_names(["a", "b"], 2) == "a, b"
    assert first_names(("a", "b", "c"), 2) == "a, b, …"
    assert short_hash("0123456789abcdef" * 4) == "0123456789ab"
    assert short_hash("0123456789abcdef" * 3) == "0123456789abcdef" * 3
