//! The report in headless Chromium: in both themes and at a telephone's width, by a script put behind a copy
//! of the page; and as it is printed, by the PDF's words.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;

use super::picture::chromium;
use super::*;

/// Writes what it finds into the page, as JSON.
const LOOK: &str = include_str!("look.js");
/// Longest run of the browser, which takes some seconds.
const LIMIT_S: &str = "120";
/// Width of a telephone.
const NARROW: u32 = 390;

/// The browser, which gets a copy of the page. No sandbox: the page is ours, and root has none. Its own
/// profile; timers fire at once. `timeout` ends one that hangs, with status 124.
fn browser(chromium: &Path, stage: &Stage) -> Command {
    let mut browser = Command::new("timeout");
    browser.args(["--kill-after=5", LIMIT_S]).arg(chromium).args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-logging=stderr",
        "--virtual-time-budget=2000",
    ]);
    browser.arg(format!("--user-data-dir={}", stage.0.join("profile").display()));
    browser
}

/// What the script finds on the page in one theme and width, and what the browser's console says.
fn looked(chromium: &Path, stage: &Stage, page: &str, theme: &str, width: u32) -> (Value, Vec<String>) {
    let script = LOOK.replace("THEME", theme);
    let copy = stage.0.join(format!("{theme}-{width}.html"));
    fs::write(&copy, page.replace("</body>", &format!("<script>{script}</script></body>"))).unwrap();
    let mut browser = browser(chromium, stage);
    browser
        .arg(format!("--window-size={width},900"))
        .arg("--dump-dom")
        .arg(format!("file://{}", copy.display()));
    let output = browser.output().unwrap();
    let (dom, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let console = said.lines().filter(|line| line.contains("CONSOLE")).map(str::to_owned).collect();
    let found = dom.split("id=\"findings\">").nth(1).and_then(|rest| rest.split("</pre>").next());
    let found = found.unwrap_or_else(|| panic!("the script left nothing: {console:?} {said}"));
    let found = found.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    (serde_json::from_str(&found).unwrap(), console)
}

fn list(found: &Value) -> Vec<&str> {
    found.as_array().unwrap().iter().map(|one| one.as_str().unwrap()).collect()
}

#[test]
fn in_a_browser_the_page_is_quiet_fits_a_telephone_and_can_be_read_in_both_themes() {
    let chromium = measure::need!(chromium(), chromium, "headless Chromium");
    let (stage, figures) = (Stage::new("browser"), committed());
    let page = whole(&figures);
    for (theme, width) in [("light", NARROW), ("dark", NARROW), ("light", picture::WIDTH), ("light", 1280)] {
        let (found, console) = looked(&chromium, &stage, &page, theme, width);
        assert_eq!(console, [""; 0], "{theme}, {width} px");
        assert_eq!((found["theme"].as_str(), found["width"].as_u64()), (Some(theme), Some(width.into())));
        assert!(found["needed"].as_u64() <= Some(width.into()), "scrolls sideways: {}", found["wide"]);
        let cut = list(&found["cut"]);
        assert!(width == NARROW || cut.is_empty(), "{width} px: the table of claims is cut: {cut:?}");
        assert!(found["texts"].as_u64() > Some(2000), "{}", found["texts"]);
        assert_eq!(list(&found["pale"]), [""; 0], "{theme}: contrast below 4.5");
        assert_eq!(
            list(&found["grounds"]).len(),
            1,
            "{theme}: a plot's ground is its card's: {}",
            found["grounds"]
        );
        let numbers: Vec<u32> = figures.iter().map(Figure::number).collect();
        assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7]);
        for figure in &figures {
            let panels = found["figures"][figure.name()].as_array().unwrap();
            assert!(
                !panels.is_empty() && panels.len() == figure.shown.len(),
                "{}: nothing of ours",
                figure.name()
            );
            for panel in panels {
                assert_eq!(fault(figure.number(), panel), None, "{}", panel["id"]);
            }
        }
        let why = found["said"]["fig1"].as_str().unwrap();
        assert!(why.starts_with("Published. Ours stands alone: the paper gives the method only"), "{why}");
    }
}

/// An entry's faulty plots: each must name ours and the published series; figures 1 and 3 name ours alone.
fn fault(figure: u32, panel: &Value) -> Option<String> {
    let Some(plots) = panel["plots"].as_array() else { return Some(format!("no plots: {panel}")) };
    let count = |plot: &Value, what: &str| plot[what].as_u64().unwrap_or(0);
    for plot in plots {
        // Figure 3 is a drawing of the way: its functions are ours.
        let is_named = if figure == 3 { count(plot, "texts") > 30 } else { count(plot, "ours") > 0 };
        if !list(&plot["outside"]).is_empty() || !is_named {
            return Some(format!("text outside of a plot, or no series of ours: {plot}"));
        }
    }
    let published: u64 = plots.iter().map(|plot| count(plot, "published")).sum();
    let is_beside = ![1, 3].contains(&figure);
    (plots.is_empty() || (published > 0) != is_beside).then(|| format!("{published} published series"))
}

#[test]
fn a_plot_without_a_series_or_with_text_outside_is_a_fault() {
    let panel = |ours: u32, published: u32, outside: &[&str]| serde_json::json!({ "plots": [{ "texts": 40, "ours": ours, "published": published, "outside": outside }] });
    for (figure, panel, is_good) in [
        (1, panel(1, 0, &[]), true),
        (1, panel(1, 1, &[]), false),
        (1, panel(0, 0, &[]), false),
        (3, panel(0, 0, &[]), true),
        (4, panel(1, 1, &[]), true),
        (4, panel(1, 0, &[]), false),
        (4, panel(0, 1, &[]), false),
        (4, panel(1, 1, &["ours (emulated NIC)"]), false),
        (4, serde_json::json!({ "plots": [] }), false),
    ] {
        assert_eq!(fault(figure, &panel).is_none(), is_good, "{figure}: {panel}");
    }
}

#[test]
fn in_a_browser_what_is_wrong_with_a_page_is_found() {
    let chromium = measure::need!(chromium(), chromium, "headless Chromium");
    let stage = Stage::new("planted");
    let planted = "<p style=\"color:#999;background:#fff\">pale</p><div style=\"width:900px\">wide</div><script>console.log(\"said\")</script>\
                   <section id=\"planted\"><div class=\"panel\" id=\"e0\"><svg width=\"100\" height=\"100\"><rect fill=\"#ffffff\" width=\"100\" \
                   height=\"100\"/><text x=\"500\" y=\"20\">ours (far)</text></svg></div></section></main>";
    let page = whole(&committed()).replace("</main>", planted);
    let (found, console) = looked(&chromium, &stage, &page, "light", NARROW);
    assert!(console.iter().any(|line| line.contains("said")), "{console:?}");
    assert!(
        found["needed"].as_u64() > Some(NARROW.into()) && found["wide"].as_str().unwrap().contains("wide")
    );
    assert!(list(&found["pale"]).iter().any(|line| line.ends_with(": pale")), "{}", found["pale"]);
    assert!(list(&found["cut"]).iter().any(|line| line.starts_with("DIV claim")), "a telephone scrolls it");
    assert_eq!(list(&found["figures"]["planted"][0]["plots"][0]["outside"]), ["ours (far)"]);
    assert!(fault(4, &found["figures"]["planted"][0]).is_some());
}

#[test]
fn in_a_browser_tables_sort_and_claims_are_filtered_by_verdict() {
    let chromium = measure::need!(chromium(), chromium, "headless Chromium");
    let (stage, figures) = (Stage::new("script"), committed());
    let mut claims = Claims::of(&figures);
    let page = page::page(&figures, &claims).unwrap();
    let (found, _) = looked(&chromium, &stage, &page, "light", 1280);
    let (standing, count) = claims.counts.pop_first().unwrap();
    assert_eq!(
        (&found["filtered"]["by"], &found["filtered"]["shown"]),
        (&standing.key().into(), &count.into())
    );
    let column = |name: &str| -> Vec<u64> {
        found[name].as_array().unwrap().iter().map(|one| one.as_u64().unwrap()).collect()
    };
    let (up, down) = (column("ascending"), column("descending"));
    assert!(up.len() == 36 && up.is_sorted() && !up.iter().rev().is_sorted(), "{up:?}");
    assert!(down.iter().rev().is_sorted() && down.len() == 36, "{down:?}");
    assert_eq!(found["opened"], true, "a link to an entry opens its tab");
    // The picture that README.md shows, and one that is taken now.
    let (file, png) = (stage.0.join("index.html"), stage.0.join("page.png"));
    fs::write(&file, page).unwrap();
    picture::take(&file, &png).unwrap();
    for png in [png, root().join("docs/report.png")] {
        let bytes = fs::read(&png).unwrap();
        assert!(
            bytes.starts_with(b"\x89PNG") && bytes.len() < 200 << 10,
            "{}: {} B",
            png.display(),
            bytes.len()
        );
    }
}

/// A page of the PDF: its width, and each word with left edge, right edge and height, in points.
type Printed = Vec<(f64, Vec<(String, [f64; 3])>)>;

/// The page as it is printed.
fn printed(chromium: &Path, stage: &Stage, name: &str, page: &str) -> Printed {
    let [copy, pdf] = ["html", "pdf"].map(|kind| stage.0.join(format!("{name}.{kind}")));
    fs::write(&copy, page).unwrap();
    let mut browser = browser(chromium, stage);
    browser.arg("--no-pdf-header-footer").arg(format!("--print-to-pdf={}", pdf.display()));
    let ended = browser.arg(format!("file://{}", copy.display())).output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let said = Command::new("pdftotext").arg("-bbox").arg(&pdf).arg("-").output().unwrap();
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let number = |line: &str, name: &str| -> f64 {
        let rest = line.split(&format!("{name}=\"")).nth(1).unwrap();
        rest.split('"').next().unwrap().parse().unwrap()
    };
    let mut pages = Printed::new();
    for line in said.lines() {
        if line.contains("<page ") {
            pages.push((number(line, "width"), Vec::new()));
        } else if line.contains("<word ") {
            let [left, top, right, bottom] = ["xMin", "yMin", "xMax", "yMax"].map(|name| number(line, name));
            pages
                .last_mut()
                .unwrap()
                .1
                .extend(words(line).into_iter().map(|word| (word, [left, right, bottom - top])));
        }
    }
    pages
}

/// The words between the tags of a piece of HTML or SVG.
fn words(markup: &str) -> Vec<String> {
    let pieces = markup.split('<').skip(1).filter_map(|piece| piece.split_once('>'));
    let text: String = pieces.map(|(_, text)| format!("{text} ")).collect();
    let entities =
        [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&apos;", "'"), ("&#39;", "'"), ("&amp;", "&")];
    let text = entities.iter().fold(text, |text, (entity, character)| text.replace(entity, character));
    text.split_whitespace().map(str::to_owned).collect()
}

/// What is wrong with the printed page: one sheet or another size, shrunk, wider than its margins; or words
/// of a plot or of the claims' last column are cut off.
fn print_faults(pages: &Printed, wanted: &[(String, Vec<String>)]) -> Vec<String> {
    const A4: f64 = 595.0;
    const MARGIN: f64 = 39.0;
    let mut faults = Vec::new();
    let heading =
        pages.first().and_then(|(_, words)| words.first()).map_or(0.0, |(_, [_, _, height])| *height);
    if pages.len() < 7 || heading < 18.0 {
        faults.push(format!("{} pages, a heading of {heading} points", pages.len()));
    }
    let mut there: BTreeMap<&str, usize> = BTreeMap::new();
    for (number, (width, words)) in pages.iter().enumerate() {
        let wide = words.iter().find(|(_, [left, right, _])| *left < MARGIN || *right > width - MARGIN);
        if (width - A4).abs() > 1.0 || wide.is_some() {
            faults.push(format!("page {}, {width} points wide: {wide:?}", number + 1));
        }
        words.iter().for_each(|(word, _)| *there.entry(word).or_default() += 1);
    }
    for (what, words) in wanted {
        for word in words {
            match there.get_mut(&**word) {
                Some(count) if *count > 0 => *count -= 1,
                _ => faults.push(format!("{what}: `{word}` is not printed")),
            }
        }
    }
    faults
}

#[test]
fn a_pdf_without_pages_or_words_is_a_fault() {
    for pages in [Printed::new(), vec![(595.0, Vec::new())]] {
        let faults = print_faults(&pages, &[]);
        assert_eq!(faults, [format!("{} pages, a heading of 0 points", pages.len())]);
    }
}

#[test]
fn in_a_browser_the_page_is_printed_whole_with_every_figure() {
    let chromium = measure::need!(chromium(), chromium, "headless Chromium");
    let poppler = Command::new("pdftotext").arg("-v").output();
    measure::need!(poppler, pdftotext, "pdftotext");
    let (stage, figures) = (Stage::new("printed"), committed());
    let page = whole(&figures);
    let rows: Vec<&str> = page.split("<tr data-standing=").skip(1).collect();
    assert_eq!((rows.len(), figures.len()), (36, 7));
    let column =
        rows.iter().flat_map(|row| words(row.split("</tr>").next().unwrap().rsplit("<td").next().unwrap()));
    let mut wanted = vec![("last column of the claims".to_owned(), column.collect())];
    for figure in &figures {
        let plots: Vec<String> = figure.files().flat_map(|(_, svg)| words(svg)).collect();
        assert!(plots.len() > 20, "{}: {plots:?}", figure.name());
        wanted.push((figure.name().to_owned(), plots));
    }
    assert_eq!(print_faults(&printed(&chromium, &stage, "whole", &page), &wanted), [""; 0]);
    // Tables that scroll, plots behind tabs, a page shrunk to hold something wide, and no rules for print.
    let without = |rule: &str| {
        assert_eq!(page.matches(rule).count(), 1, "{rule}");
        page.replace(rule, "")
    };
    let scrolls =
        without(".wide, .plot, details > .wide { overflow: visible; max-height: none; border: 0; }")
            .replace(".plot svg, .claims { min-width: 0; }", ".claims { min-width: 75rem; }");
    let wide = page.replace("</main>", "<div style=\"width:300rem\">wide</div></main>");
    for (name, page, fault) in [
        ("scrolls", scrolls, "last column of the claims: `fig"),
        ("tabs", without(".tabs > .panel { display: block !important; }"), "fig4: `"),
        ("wide", wide, " pages, a heading of "),
        ("screen", page.replace("@media print", "@media none"), "page 1, 612 points wide"),
    ] {
        let faults = print_faults(&printed(&chromium, &stage, name, &page), &wanted);
        assert!(faults.iter().any(|one| one.contains(fault)), "{name}: {faults:?}");
    }
}
