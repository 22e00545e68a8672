from evalharness.api.checks import excerpt, first_names, short_hash


def test_a_text_within_the_length_is_shown_whole():
    assert excerpt("abcde", 5) == "abcde"


def test_a_longer_text_is_cut_and_marked():
    assert excerpt("abcdef", 5) == "abcde…"


def test_the_number_of_missing_characters_is_counted_where_asked_for():
    assert excerpt("a" * 3005, 5, count_rest=True) == "aaaaa… (3,000 more characters)"
    assert excerpt("abcde", 5, count_rest=True) == "abcde"


def test_a_long_list_of_names_is_cut_and_marked():
    assert first_names(["a", "b"], 2) == "a, b"
    assert first_names(("a", "b", "c"), 2) == "a, b, …"


def test_only_a_sha256_is_shortened():
    assert short_hash("0123456789abcdef" * 4) == "0123456789ab"
    assert short_hash("0123456789abcdef" * 3) == "0123456789abcdef" * 3
