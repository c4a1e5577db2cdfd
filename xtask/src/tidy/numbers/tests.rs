//! Sources of each kind, and each way in which a figure can be wrong, planted.

use super::*;

const MEASURED: &str = r#"{"entries": [
    {"machine": "a, 2 cores", "label": "emulated", "rows": [
        {"series": "cpu-shim", "x": 64, "at": {"list": 1}, "values": {"post_ns": [37.4, 30, 50], "msgs_per_s": [3198000]}},
        {"series": "cpu-shim", "x": 64, "at": {"list": 16}, "values": {"post_ns": [9.96]}}]},
    {"machine": "b", "label": "emulated", "provenance": {"rate_gbps": 100.0}, "rows": [],
        "ratios": {"shim/libmlx5": 0.8984, "value": 12.5}}]}"#;
const SPEC: &str = "[series.a]\noptions = [\"-s\", \"65536\", \"-u\", \"8\"]\n";
const PAPER: &str = "[[series]]\nours = \"cpu-shim\"\npoints = [[4000, 18.514], [8000, 36.44]]\n\
    [[claim]]\nid = \"c\"\ntext = \"The L40 runs at 2.49 GHz\"\n[[claim]]\nid = \"d\"\ntext = \"Up to half\"\n";
const SOURCE: &str = "//! x\n/// Not RING here: const RING.\npub const RING: usize = 2 << 20;\nconst ALL: usize = 4 * RING;\n\
    const WAIT: Duration = Duration::from_micros(200);\nconst LONG: Duration = Duration::from_nanos(delay::MOST_NS + 100_000_000);\n\
    const WAIT_MS: u64 = 50;\nconst SHARE: f64 = 0.25;\nconst NAME: &str = \"x\";\nconst SELF: u32 = SELF;\n\
    fn it() -> Times { Times {\n    spin_ns: 2_000_000,\n} }\n#[cfg(test)]\nmod tests {\n    const RING: usize = 1;\n}\n";
const OTHER: &str = "//! y\npub const MOST_NS: u64 = 1_000_000_000;\n";
const HEADER: &str = "#define FLAG 0x80000000u // 2 GiB\n";

fn found_in(path: &str, text: &str) -> Vec<String> {
    let files = [
        ("experiments/e/measured.json", MEASURED),
        ("experiments/e/paper.toml", PAPER),
        ("experiments/e/spec.toml", SPEC),
        ("a/src/ring.rs", SOURCE),
        ("a/src/delay.rs", OTHER),
        ("a/x.h", HEADER),
        (path, text),
    ];
    check(&Tree::of(&files))
}

fn found(text: &str) -> Vec<String> {
    found_in("docs/x.md", text)
}

const ROW: &str =
    "experiments/e/measured.json#/entries/machine=a, 2 cores/rows/series=cpu-shim&x=64&at.list=1/values";
const B: &str = "experiments/e/measured.json#/entries/provenance.rate_gbps=100";

#[test]
fn a_figure_that_equals_its_source_passes() {
    for (said, source) in [
        ("37 ns", format!("{ROW}/post_ns/0")),
        ("0.0374 µs", format!("{ROW}/post_ns/0")),
        ("37.4 ns", format!("{ROW}/post_ns/0")),
        ("3.2 M messages/s", format!("{ROW}/msgs_per_s/0")),
        ("3,198,000 messages/s", format!("{ROW}/msgs_per_s/0")),
        ("100 Gbit/s", format!("{B}/provenance/rate_gbps")),
        ("0.898", format!("{B}/ratios/shim~1libmlx5")),
        ("90 %", format!("{B}/ratios/shim~1libmlx5")),
        ("12.5 %", format!("{B}/ratios/value in %")),
        ("13 µs", format!("{B}/ratios/value in µs")),
        ("18.5 Gbit/s", "experiments/e/paper.toml#/series/ours=cpu-shim/points/0=4000/1 in Gbit/s".into()),
        ("10 ns", format!("least {}", ROW.replace("&at.list=1", "")) + "/post_ns/0"),
        ("37.4 ns", format!("most {}", ROW.replace("&at.list=1", "")) + "/post_ns/0"),
        ("2.49 GHz", "experiments/e/paper.toml#/claim/id=c/text".into()),
        ("64 KiB", "experiments/e/spec.toml#/series/a/options/1".into()),
        ("2 MiB", "a/src/ring.rs#RING".into()),
        ("8 MiB", "a/src/ring.rs#ALL".into()),
        ("0.2 ms", "a/src/ring.rs#WAIT".into()),
        ("1.1 s", "a/src/ring.rs#LONG".into()),
        ("50 ms", "a/src/ring.rs#WAIT_MS".into()),
        ("2 ms", "a/src/ring.rs#spin_ns".into()),
        ("25 %", "a/src/ring.rs#SHARE".into()),
        ("2 GiB", "a/x.h#FLAG".into()),
    ] {
        assert_eq!(found(&format!("It is {said}<!-- = {source} -->.\n")), [""; 0], "{said} of {source}");
    }
}

#[test]
fn names_and_formulas_of_a_page_stand_for_their_sources() {
    let page = |body: &str| {
        format!(
            "{body}\n\n<!-- numbers\nring = a/src/ring.rs#RING\npair = 4 * ring\nwait = a/src/ring.rs#WAIT\n-->\n"
        )
    };
    let good = "A ring has 2 MiB<!-- = ring -->, two 4 MiB<!-- = pair / 2 -->, and 400 µs<!-- = 2 ^ 1 * wait --> pass.";
    assert_eq!(found(&page(good)), [""; 0]);
    for (body, words) in [
        (good.replace("4 MiB", "5 MiB"), "x.md:1: «5 MiB» is not pair / 2: that is 4.0 MiB"),
        (good.replace("pair / 2", "pear / 2"), "the page defines no pear"),
        (good.replace("wait -->", "wait + ring -->"), "is not worked out here"),
        (good.replace("2 ^ 1 * wait", "400"), "names no file, and nothing that the page defines"),
        (good.replace("2 ^ 1 * wait", "wait *"), "is not understood"),
    ] {
        let found = found(&page(&body));
        assert!(found.iter().any(|one| one.contains(words)), "{words}: {found:?}");
    }
    let unused = found(&page("Nothing."));
    assert!(unused.len() == 2 && unused[0].contains("x.md:5: no figure uses pair"), "{unused:?}");
    let twice =
        found("2 MiB<!-- = r -->\n<!-- numbers\nr = a/src/ring.rs#RING\nr = a/src/ring.rs#ALL\n-->\n");
    assert!(twice.len() == 1 && twice[0].contains("x.md:4: r is defined twice"), "{twice:?}");
}

#[test]
fn a_figure_with_a_unit_and_no_source_is_named_with_what_to_write() {
    for said in [
        "37 ns",
        "5 µs",
        "250us",
        "3 ms",
        "96 s",
        "10 min",
        "9 Gb/s",
        "9 Gbit/s",
        "3.2 M messages/s",
        "−50 %",
        "2 ×",
        "7 W",
        "3 J",
        "2 MiB",
        "64-KiB",
    ] {
        let found = found(&format!("First line.\nIt took {said}, or so.\n"));
        let number = said.trim_start_matches('−');
        let words = format!("docs/x.md:2: «{said}» has no source: write {said}<!-- = FILE#WHERE -->");
        assert!(found.len() == 1 && found[0].starts_with(&words), "{number}: {found:?}");
    }
}

#[test]
fn a_figure_may_end_a_line_between_number_and_unit() {
    let text = |said: &str| format!("First\nline: {said}<!-- = a/src/ring.rs#RING --> and on.\n");
    assert_eq!(found(&text("2\nMiB")), [""; 0]);
    assert!(found(&text("3\nMiB"))[0].starts_with("docs/x.md:2: «3 MiB» is not"));
    assert!(found("It took 3\nms.\n")[0].starts_with("docs/x.md:1: «3 ms» has no source"));
    assert_eq!(found("A list of 3\n\nms is a unit.\n"), [""; 0]);
}

#[test]
fn both_ends_of_a_range_have_its_unit() {
    let cited = "<!-- = a/src/ring.rs#RING -->";
    for range in ["2A to 2 MiBA", "2A\nto 2 MiBA", "2A–2 MiBA", "2 MiBA to 2 MiBA"] {
        assert_eq!(found(&format!("It is {}.\n", range.replace('A', cited))), [""; 0], "{range}");
        assert_eq!(found(&format!("It is {}.\n", range.replace('A', ""))).len(), 2, "{range}");
    }
    assert_eq!(found("Sizes of 64 to 4096, lists of 1 to 16 B.\n"), [""; 0]);
}

#[test]
fn what_is_no_figure_of_prose_needs_no_source() {
    for text in [
        "A WQE has 64 bytes and 4 segments; see RFC 2119, version 4.5, H100s, 10.0.0.1, 1.92 or newer.\n",
        "Run `softnic --delay 250us`.\n\n```sh\nsleep 2 s # 20 s\n```\n",
        "<!-- table: x -->\n| 3 ms |\n<!-- end of table -->\n",
        "[a](b.md#after-3-s) and <!-- a remark of 3 s --> more\n",
        "16-core, 5th, 3 steps, x86-64 systems\n",
    ] {
        assert_eq!(found(text), [""; 0], "{text}");
    }
}

#[test]
fn a_time_in_words_is_a_figure_too() {
    for (text, said) in [
        ("Its build takes nine minutes.\n", "«nine minutes»"),
        ("Five\nminutes on two cores.\n", "«Five minutes»"),
        ("It is 2 to ten seconds.\n", "«2»"),
    ] {
        let found = found(text);
        assert!(!found.is_empty() && found[0].contains(said), "{text}: {found:?}");
    }
    assert_eq!(found_in("experiments/e/README.md", "It takes nine minutes.\n"), [""; 0]);
    let two = "It waits for two seconds<!-- = a/src/ring.rs#RING -->.\n";
    assert!(found(two)[0].contains("«two seconds» is not a/src/ring.rs#RING"), "{:?}", found(two));
    for text in ["Two of them, ten per cent, a second host, often seconds.\n", "Run `sleep two seconds`.\n"] {
        assert_eq!(found(text), [""; 0], "{text}");
    }
}

#[test]
fn a_source_that_is_not_there_or_says_another_number_is_named() {
    let row = format!("{ROW}/post_ns/0");
    for (said, source, words) in [
        ("38 ns", row.as_str(), "«38 ns» is not"),
        ("38 ns", row.as_str(), "that is 37.4 ns"),
        ("37.5 ns", row.as_str(), "that is 37.40 ns"),
        ("37 MiB", row.as_str(), "37.4 ns is no number of MiB"),
        ("37", row.as_str(), "has a unit, and the figure has none"),
        ("37 ns", &format!("{row} in ns"), "leave «in ns» out"),
        ("13 µs", &format!("{B}/ratios/value"), "its unit is not known: end it with «in µs»"),
        ("37 ns", &format!("{ROW}/post/0"), "there is no post"),
        ("37 ns", &format!("least {}/post_ns/0", ROW.replace("=64", "=65")), "holds for none of 2 elements"),
        ("10 ns", &format!("most {}/post_ns/0", ROW.replace("&at.list=1", "")), "that is 37.4 ns"),
        ("37 ns", &format!("{ROW}/post_ns/9"), "there is no 9"),
        ("37 ns", &format!("{ROW}/post_ns"), "is no number"),
        (
            "37 ns",
            "experiments/e/measured.json#/entries/label=emulated/x",
            "holds for 2 of 2 elements, not for one",
        ),
        ("37 ns", "experiments/e/measured.json#/entries/label=hardware/x", "holds for none of 2 elements"),
        ("37 ns", "experiments/gone/measured.json#/x", "experiments/gone/measured.json is not there"),
        ("37 ns", "experiments/e/paper.toml#/claim/id=d/text", "has 0 figures with a unit, not one"),
        ("1 ms", "experiments/e/spec.toml#/series/a/options/3", "its unit is not known"),
        ("1 MiB", "experiments/e/spec.toml#/series/a/options/0", "«-s» has 0 figures with a unit, not one"),
        ("1 MiB", "a/src/ring.rs#RING", "that is 2.0 MiB"),
        ("2 ms", "a/src/ring.rs#RING", "its unit is not known"),
        ("2 MiB", "a/src/ring.rs#RINGS", "RINGS is defined there 0 times, not once"),
        ("2 MiB", "a/src/ring.rs#SELF", "it is made of itself"),
        ("2 MiB", "a/src/ring.rs#NAME", "NAME = \"x\""),
        ("2 MiB", "ring", "the page defines no ring"),
        ("2 MiB", "2 ^ 21", "it names no file, and nothing that the page defines"),
        ("2 ms", "Duration::from_millis(2)", "the page defines no Duration"),
    ] {
        let found = found(&format!("# x\n\nIt is {said}<!-- = {source} -->.\n"));
        let is_named = found.len() == 1 && found[0].starts_with("docs/x.md:3: ") && found[0].contains(words);
        assert!(is_named, "{said} of {source}: {words}: {found:?}");
    }
}

#[test]
fn a_source_behind_no_figure_is_named() {
    for text in ["It is fast<!-- = a/src/ring.rs#RING -->.\n", "It is 2 MiB <!-- = a/src/ring.rs#RING -->.\n"]
    {
        let found = found(text);
        assert!(found[0].contains("«= a/src/ring.rs#RING» stands behind no figure"), "{found:?}");
    }
}

#[test]
fn a_laboratory_note_needs_sources_as_every_document_does() {
    assert_eq!(found_in("CHANGELOG.md", "It took 5 µs.\n"), [""; 0], "no page of the check");
    for page in
        ["README.md", "ARCHITECTURE.md", "docs/x.md", "docs/notes/copies.md", "experiments/e/README.md"]
    {
        assert_eq!(found_in(page, "It took 5 µs.\n").len(), 1, "{page}");
    }
}

#[test]
fn the_documents_have_their_sources() {
    let tree = Tree::read(&crate::workspace::root()).unwrap();
    let found = check(&tree);
    assert!(found.is_empty(), "{found:?}");
    let compared = |(_, text)| Page::read(text).figures.iter().filter(|it| it.source.is_some()).count();
    let counts = (pages(&tree).count(), pages(&tree).map(compared).sum::<usize>());
    assert!(counts.0 > 40 && counts.1 > 150, "{counts:?}");
}
