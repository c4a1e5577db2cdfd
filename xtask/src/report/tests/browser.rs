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
        for figure in figures.iter().filter(|figure| !figure.shown.is_empty()) {
            let panels = found["figures"][figure.name()].as_array().unwrap();
            assert_eq!(panels.len(), figure.shown.len(), "{}", figure.name());
            for panel in panels {
                let id = &panel["id"];
                match figure.number() {
                    1 => assert!(panel["ours"].as_u64() > Some(0), "{id}: no series of ours"),
                    // A drawing of the way: its functions are ours.
                    3 => assert!(panel["texts"].as_u64() > Some(30), "{id}"),
                    _ => {
                        assert!(panel["ours"].as_u64() > Some(0), "{id}: no series of ours");
                        assert!(panel["published"].as_u64() > Some(0), "{id}: no published series");
                    }
                }
            }
        }
    }
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
