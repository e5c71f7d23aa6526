"""Tests of arrays and sweeps: the members, their values, and their names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuqueue.errors import BadRequest
from gpuqueue.model.array import MOST_MEMBERS, Array, Indexes, Member
from gpuqueue.model.job_ref import JobName
from gpuqueue.model.sweep import Axis
from gpuqueue.model.validation import sweeps


def _column(rows: int) -> st.SearchStrategy[list[str]]:
    """Return the values of one parameter in so many rows."""
    value = st.sampled_from(["0", "1..3", "[1,2]", "a,b", "it's", '"', "@x", " "]) | st.text("ab {}=", min_size=1)
    return st.lists(value, min_size=rows, max_size=rows)


@pytest.mark.parametrize(
    ("text", "members"),
    [("0-3", [0, 1, 2, 3]), ("7", [7]), ("0-6:3", [0, 3, 6]), ("1,5,7-9", [1, 5, 7, 8, 9]), ("0-5:2", [0, 2, 4])],
)
def test_indexes_are_what_was_written(text: str, members: list[int]) -> None:
    """The indexes match the text, and their text parses to the same indexes."""
    found = Indexes.parse(text)

    assert members == list(found)
    assert len(members) == len(found)
    assert members == list(Indexes.parse(str(found)))


def test_a_million_members_take_no_room() -> None:
    """A large array is not expanded into its members."""
    assert MOST_MEMBERS == len(Array.parse(f"0-{MOST_MEMBERS - 1}"))
    assert "999999" == Array.sweep([Axis.typed("seed=0..999999")]).values(999_999)["seed"]


@pytest.mark.parametrize(
    "text",
    ["", "%8", "0-", "-3", "9-3", "0-5:0", "a", "0-3,2-5", "5,1", "1,1", "0-1000000", "0-9%0", "0-9%x", "0-9%", "0-9,"],
)
def test_what_names_no_array_is_refused_in_one_line(text: str) -> None:
    """An invalid array is refused in one line, before any request to the store."""
    with pytest.raises(BadRequest) as refused:
        Array.parse(text)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    ["lr", "=1", "lr=", "lr=1,,2", "seed=4..0", "index=1", "a b=1", "1=2", "lr=0.1..0.5", "k=1,2..3.5", "a=0..9:3"],
)
def test_what_is_no_sweep_is_refused(text: str) -> None:
    """An axis needs an identifier as its name, and values."""
    with pytest.raises(BadRequest):
        Axis.typed(text)


def test_a_value_that_resembles_a_range_is_a_value() -> None:
    """A value with two dots that is no range of integers is a plain value, such as a path."""
    assert ["../a", "x..y"] == [Axis.typed("data=../a,x..y").value(place) for place in (0, 1)]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("[64,64],[128,128]", ["[64,64]", "[128,128]"]),
        ('{"a":1,"b":2}', ['{"a":1,"b":2}']),
        ('{"a":[1,2],"b":{"c":3}},{"a":[]}', ['{"a":[1,2],"b":{"c":3}}', '{"a":[]}']),
        ("(0.9,0.999),(0.9,0.95)", ["(0.9,0.999)", "(0.9,0.95)"]),
        ('"a,b",c', ['"a,b"', "c"]),
        ("'a,b',c", ["'a,b'", "c"]),
        (r'{"say":"x\",}"},y', [r'{"say":"x\",}"}', "y"]),
        ('["]",")"],x', ['["]",")"]', "x"]),
        ("f(x,y),0..2", ["f(x,y)", "0", "1", "2"]),
        ("[0..2],3", ["[0..2]", "3"]),
        ("don't,won't", ["don't", "won't"]),
        ('@["a,b", "0..4"]', ["a,b", "0..4"]),
        ("@ada,@bob", ["@ada", "@bob"]),
    ],
)
def test_a_comma_inside_brackets_or_quotes_separates_no_values(text: str, values: list[str]) -> None:
    """A list, a tuple, JSON or a text in quotes is one value, as it is written."""
    axis = Axis.typed(f"x={text}")

    assert values == [axis.value(place) for place in range(len(axis))]
    assert axis == Axis.parse(str(axis))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[64,64],[128,128", "its [ is not closed"),
        ("[64,64],128,128]", "its ] closes no bracket"),
        ("[64,64),(1,2]", "its ) closes no bracket"),
        ('{"a":1,"b', 'its " is not closed'),
        ("'a,b", "its ' is not closed"),
        ("f((1),2", "its ( is not closed"),
        ('@["a", 1', "its [ is not closed"),
    ],
)
def test_a_bracket_or_quote_without_its_partner_is_refused(text: str, why: str) -> None:
    """One line names it, and the file that takes any value."""
    with pytest.raises(BadRequest) as refused:
        Axis.typed(f"layers={text}")
    assert why in str(refused.value)
    assert "--sweep layers=@FILE" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("x=[64,64],[128,128]", ["[64", "64]", "[128", "128]"]),
        ("x=[0,1),[1,2)", ["[0", "1)", "[1", "2)"]),
        ('x=@["a", "b"]', ['@["a"', ' "b"]']),
        ("x=don't,0..1", ["don't", "0", "1"]),
    ],
)
def test_an_array_of_an_earlier_version_keeps_its_values(text: str, values: list[str]) -> None:
    """There each comma separated values. Only a text with a mark is read in the new way."""
    axis = Axis.parse(text)

    assert values == [axis.value(place) for place in range(len(axis))]
    assert text == str(axis)


def test_an_earlier_version_reads_no_sweep_in_another_way() -> None:
    """It would run other arguments. No name of an axis began with the mark, so it cannot read the array at all."""
    written = [str(Axis.typed(text)) for text in ("lr=1e-3,1e-4", "x=don't,[a]", "x=[64,64],[128,128]", 'x=@["a"]')]

    assert ["lr=1e-3,1e-4", "x=don't,[a]", "@x=[64,64],[128,128]", '@x=@["a"]'] == written
    with pytest.raises(BadRequest, match="cannot name a sweep"):
        Axis.typed(written[-1])


@pytest.mark.parametrize(
    "values", [["a", 1], [":-(", 'say "hi'], ["a,b"], ['@["a","b"]'], ["[1,2]", "don't"], ["'", "'"]]
)
def test_any_values_of_a_program_are_those_of_the_members(values: list[object]) -> None:
    """Regression: a program was told to write brackets in pairs, and one value could become two."""
    (text,) = sweeps({"prompt": values})
    axis = Axis.typed(text)

    assert list(map(str, values)) == [axis.value(place) for place in range(len(axis))]


def test_one_empty_value_is_called_that() -> None:
    """The message for one empty value differs from the message for no values."""
    with pytest.raises(BadRequest, match="a='1,,2' has an empty value"):
        Axis.typed("a=1,,2")
    with pytest.raises(BadRequest, match="has no values"):
        Axis.typed("a=")


def test_a_sweep_goes_through_all_combinations_the_last_fastest() -> None:
    """A sweep visits all combinations in the given order. The last axis changes fastest."""
    sweep = Array.sweep([Axis.typed("lr=1e-3,1e-4"), Axis.typed("seed=0..2,7")])

    assert 8 == len(sweep)
    assert [("1e-3", "0"), ("1e-3", "1"), ("1e-3", "2"), ("1e-3", "7"), ("1e-4", "0")] == [
        (found["lr"], found["seed"]) for found in map(sweep.values, range(5))
    ]


def test_too_many_combinations_and_names_alike_are_refused() -> None:
    """Too many combinations and equal names are refused, so that a typing error cannot fill the store."""
    with pytest.raises(BadRequest, match="at most 1000000"):
        Array.sweep([Axis.typed("a=0..999"), Axis.typed("b=0..1000")])
    with pytest.raises(BadRequest, match="same name"):
        Array.sweep([Axis.typed("lr=1"), Axis.typed("LR=2")])


def test_only_our_own_names_are_filled_in() -> None:
    """Only the names of axes and ``index`` are replaced.

    JSON in an argument stays unchanged, and doubled braces around a name give literal ones.
    """
    sweep = Array.sweep([Axis.typed("lr=1e-3,1e-4")])

    assert "--lr=1e-4 run-1" == sweep.fill("--lr={lr} run-{index}", 1)
    assert '{"lr": 1} {other} {other} {} {{0}} {lr' == sweep.fill('{"lr": 1} {other} {{other}} {} {{0}} {lr', 1)
    assert "{lr} {index}" == sweep.fill("{{lr}} {{index}}", 0)


def test_a_member_knows_which_one_it_is() -> None:
    """The environment of a member contains its index and its values, whatever its arguments are."""
    sweep = Array.sweep([Axis.typed("lr=1e-3,1e-4")])

    assert {
        "GPUQUEUE_ARRAY_JOB_ID": "17",
        "GPUQUEUE_ARRAY_INDEX": "1",
        "GPUQUEUE_ARRAY_COUNT": "2",
        "GPUQUEUE_SWEEP_LR": "1e-4",
    } == sweep.environment(1, 17)


@given(st.lists(st.lists(st.integers(-5, 5).map(str), min_size=1, max_size=4), min_size=1, max_size=3))
def test_each_combination_comes_once(values: list[list[str]]) -> None:
    """For axes with distinct values, each combination occurs exactly once."""
    axes = [Axis(f"a{number}", ",".join(dict.fromkeys(each))) for number, each in enumerate(values)]
    sweep = Array.sweep(axes)

    found = {tuple(sweep.values(index).items())[1:] for index in sweep.indexes}

    assert len(sweep) == len(found)


@given(st.integers(1, 5).flatmap(lambda rows: st.lists(_column(rows), min_size=1, max_size=4)))
def test_each_row_is_a_member_in_its_place(columns: list[list[str]]) -> None:
    """Rows that are no combinations are linked axes; the text in the store, and in a signed job, has the same rows."""
    named = {f"a{place}": column for place, column in enumerate(columns)}
    array = Array.of_rows(named)

    read = Array(indexes=array.indexes, axes=tuple(Axis.parse(str(axis)) for axis in array.axes))

    assert [*zip(*columns, strict=True)] == [tuple(read.values(index).values())[1:] for index in read.indexes]


def test_rows_that_are_all_combinations_are_a_sweep() -> None:
    """People read lr=0.1,0.01 and not each value as often as it occurs. A range stays the text it is."""
    all_of_them = {"lr": ["0.1", "0.1", "0.01", "0.01"], "opt": ["adam", "sgd", "adam", "sgd"]}
    drawn = {"lr": ["0.1", "0.02", "0.1"], "opt": ["adam", "sgd", "sgd"], "data": ["0..4", "0..4", "1..4"]}

    assert ["lr=0.1,0.01", "opt=adam,sgd"] == [str(axis) for axis in Array.of_rows(all_of_them).axes]
    assert ["lr=0.1,0.02,0.1", "@+opt=adam,sgd,sgd", '@+data=@["0..4", "0..4", "1..4"]'] == [
        str(axis) for axis in Array.of_rows(drawn).axes
    ]


def test_linked_axes_and_others_can_be_mixed() -> None:
    """Linked ones change together. Too few values begin again, since a member must never be without one."""
    array = Array(indexes=Indexes.parse("0-3"), axes=tuple(map(Axis.parse, ("a=1,2", "@+b=x,y", "c=7,8", "@+d=z"))))

    assert ["1x7z", "1x8z", "2y7z", "2y8z"] == [array.fill("{a}{b}{c}{d}", index) for index in array.indexes]
    with pytest.raises(BadRequest, match="the sweep of a is linked to one before it, and there is none"):
        Array(indexes=Indexes.parse("0-3"), axes=(Axis.parse("@+a=1,2"),))


@pytest.mark.parametrize(("text", "member"), [("17", None), ("17_2", Member(17, 2)), ("17_5-9", None)])
def test_people_name_jobs_members_and_parts(text: str, member: Member | None) -> None:
    """A job, a member and a part have names that parse and print unchanged."""
    name = JobName.parse(text)

    assert (17, member, text) == (name.id, name.member, str(name))


@pytest.mark.parametrize("text", ["", "0", "x", "17_", "17_x", "_2", "17_2_3", "17 ", "9" * 17, "-1", "17_9-2"])
def test_what_names_no_job_is_refused(text: str) -> None:
    """An invalid job name raises `BadRequest`."""
    with pytest.raises(BadRequest):
        JobName.parse(text)


def test_ids_of_members_follow_the_arrays_own() -> None:
    """A member's id follows from the array's id, so a name needs no request to the store."""
    assert (18, 20, "17_2") == (Member(17, 0).id, Member(17, 2).id, str(Member(17, 2)))


@given(st.sets(st.integers(0, 2000)))
def test_indexes_are_written_as_few_ranges(indexes: set[int]) -> None:
    """A set of indexes becomes sorted, merged ranges without duplicates.

    The failed members of an array are listed this way.
    """
    found = Indexes.of(indexes)

    assert sorted(indexes) == list(found)
    assert all(one.stop < other.start for one, other in zip(found.ranges, found.ranges[1:], strict=False))
