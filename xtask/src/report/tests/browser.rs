//! The report in headless Chromium, in both themes and at the width of a telephone, by a script that is put behind a copy of the page.

use std::process::Command;

use serde_json::Value;

use super::picture::chromium;
use super::*;

/// Writes what it finds into the page, as JSON.
const LOOK: &str = include_str!("look.js");
/// Width of a telephone.
const NARROW: u32 = 390;

/// What the script finds on the page in one theme and width, and what the browser's console says.
fn looked(chromium: &Path, stage: &Stage, page: &str, theme: &str, width: u32) -> (Value, Vec<String>) {
    let script = LOOK.replace("THEME", theme);
    let copy = stage.0.join(format!("{theme}-{width}.html"));
    fs::write(&copy, page.replace("</body>", &format!("<script>{script}</script></body>"))).unwrap();
    let mut browser = Command::new(chromium);
    // The page is ours; root has no sandbox. A profile of its own, and the time of timers at once.
    browser.args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-logging=stderr",
        "--virtual-time-budget=2000",
    ]);
    browser.arg(format!("--user-data-dir={}", stage.0.join("profile").display()));
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
    for (theme, width) in [("light", NARROW), ("dark", NARROW), ("light", 1280)] {
        let (found, console) = looked(&chromium, &stage, &page, theme, width);
        assert_eq!(console, [""; 0], "{theme}, {width} px");
        assert_eq!((found["theme"].as_str(), found["width"].as_u64()), (Some(theme), Some(width.into())));
        assert!(found["needed"].as_u64() <= Some(width.into()), "scrolls sideways: {}", found["wide"]);
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

/// What is wrong with an entry's plots: each names its series in itself, ours and the published ones, and ours alone in figure 1.
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
    assert_eq!(list(&found["figures"]["planted"][0]["plots"][0]["outside"]), ["ours (far)"]);
    assert!(fault(4, &found["figures"]["planted"][0]).is_some());
}

#[test]
fn in_a_browser_tables_sort_and_claims_are_filtered_by_verdict() {
    let chromium = measure::need!(chromium(), chromium, "headless Chromium");
    let (stage, figures) = (Stage::new("script"), committed());
    let mut claims = Claims::of(&figures);
    let page = page::page(&figures, &claims);
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
