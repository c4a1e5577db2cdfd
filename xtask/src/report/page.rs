//! The page, as `page.html`, `section.html` and `macros.html` say it.

use anyhow::Result;
use askama::Template;
use experiment::plot_colours;
use experiment::verdict::Verdict;

use super::claims::{ClaimStatus, Claims};
use super::figures::Figure;

#[derive(Template)]
#[template(path = "report/page.html")]
struct Page<'a> {
    figures: &'a [Figure],
    claims: &'a Claims<'a>,
    doi: &'a str,
    style: String,
    script: &'static str,
}

/// The whole page; `claims` are those of the figures.
pub fn page(figures: &[Figure], claims: &Claims<'_>) -> Result<String> {
    let doi = figures.first().map_or("", |figure| figure.paper.paper.doi.as_str());
    let style = format!("{}{}", include_str!("page.css"), colours());
    Ok(Page { figures, claims, doi, style, script: include_str!("page.js") }.render()?)
}

/// The plots' colours as they are in light, and in dark with enough white that they stand out there.
fn colours() -> String {
    let rule = |[light, dark]: &[String; 2]| {
        let both = format!("light-dark({light}, {dark})");
        format!("svg [fill=\"{light}\" i]{{fill:{both}}}svg [stroke=\"{light}\" i]{{stroke:{both}}}\n")
    };
    plot_colours().iter().map(rule).collect()
}
