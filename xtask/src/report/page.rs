//! The page: head, summary, contents, the table of all claims, and a section for each figure.

use super::claims::{ClaimStatus, Claims, Line};
use super::figures::Figure;
use super::html::{attribute, prose, table_of, text};
use super::section::{badge, evidence, link, marked, repetitions, section, source};
use experiment::plot_colours;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The whole page; `claims` are those of the figures.
pub fn page(figures: &[Figure], claims: &Claims<'_>) -> String {
    let doi = figures.first().map_or("", |figure| figure.paper.paper.doi.as_str());
    let sections: String = figures.iter().map(|figure| section(figure, &claims.lines)).collect();
    let contents: String = figures
        .iter()
        .map(|figure| {
            let (name, number, title) = (figure.name(), figure.number(), text(&figure.experiment.spec.title));
            let missing = if !figure.is_recorded() { " <small>not recorded yet</small>" } else { "" };
            format!("<li><a href=\"#{name}\">Figure {number}</a> {title}{missing}</li>\n")
        })
        .collect();
    let (style, doi) = (format!("{STYLE}{}", colours()), attribute(doi));
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light dark\">\n\
         <link rel=\"icon\" href=\"data:,\">\n<title>Doorbell: the paper's figures and claims</title>\n<style>\n{style}</style>\n</head>\n<body>\n\
         <header>\n<button id=\"theme\" type=\"button\" hidden>theme</button>\n<h1>Doorbell: the paper's figures and claims</h1>\n\
         <p>An independent implementation measures the figures of <i>Toward GPU-centric Networking on Commodity Hardware</i> (EdgeSys 2024, \
         <a href=\"https://doi.org/{doi}\">doi {doi}</a>) again. Every number says what NIC, GPU and link it was measured on.</p>\n\
         {}</header>\n<main>\n<nav aria-label=\"contents\">\n<h2>Contents</h2>\n<ol>\n<li><a href=\"#claims\">All claims</a></li>\n{contents}</ol>\n</nav>\n\
         {}{sections}</main>\n<script>\n{SCRIPT}</script>\n</body>\n</html>\n",
        summary(claims),
        table(claims)
    )
}

/// How many claims stand how.
fn summary(claims: &Claims<'_>) -> String {
    let tile = |(standing, count): (&ClaimStatus, &usize)| {
        format!("<li class=\"{}\"><b>{count}</b> {standing}</li>\n", standing.key())
    };
    let tiles: String = claims.counts.iter().map(tile).collect();
    format!("<ul class=\"tiles\" aria-label=\"claims by verdict\">\n{tiles}</ul>\n")
}

/// The table of all claims, with a button for each verdict.
fn table(claims: &Claims<'_>) -> String {
    let button = |(standing, count): (&ClaimStatus, &usize)| {
        format!(
            "<button type=\"button\" data-show=\"{}\" aria-pressed=\"false\">{standing} {count}</button>\n",
            standing.key()
        )
    };
    let buttons: String = claims.counts.iter().map(button).collect();
    let rows: String = claims.lines.iter().map(row).collect();
    let titles = ["claim", "figure", "verdict", "evidence", "provenance", "raw data"];
    format!(
        "<section id=\"claims\">\n<h2>All claims</h2>\n<p>The paper makes {count} claims. A claim's verdict is that of the recorded entry with the \
         strongest label; of entries with the same label it is the least favourable one. The evidence lists every entry; added ones decide \
         no claim.</p>\n\
         <div class=\"filter\" role=\"group\" aria-label=\"show claims by verdict\" hidden>\n\
         <button type=\"button\" data-show=\"\" aria-pressed=\"true\">all {count}</button>\n{buttons}</div>\n\
         {table}</section>\n",
        count = claims.lines.len(),
        table = table_of("sortable claims", &titles, &rows)
    )
}

fn row(line: &Line<'_>) -> String {
    let (claim, name, number) = (line.claim, line.figure.name(), line.figure.number());
    let note = claim.note.as_ref().filter(|note| line.reason.as_ref() != Some(note));
    let note =
        note.map_or_else(String::new, |note| format!("<div class=\"note\">{}</div>", prose(note.trim())));
    let reason =
        line.reason.as_ref().map_or_else(String::new, |reason| format!("<p>{}</p>", prose(reason.trim())));
    let first = line.judged.first().map_or("", |(_, judged)| judged.criterion.as_str());
    let criterion =
        if first.is_empty() { String::new() } else { format!("<div class=\"note\">{}</div>", text(first)) };
    let of = |(shown, judged): &(&super::figures::Shown, &experiment::verdict::Judged)| {
        format!(
            "<div>{} {} <small>label {}{}</small>{}</div>",
            link(&shown.id),
            text(&judged.said()),
            judged.label,
            marked(shown),
            evidence(judged)
        )
    };
    let judged: String = line.judged.iter().map(of).collect();
    let provenance = match line.by {
        Some(shown) => {
            let from = &shown.entry.provenance;
            format!(
                "{} NIC {}, GPU {}, link {}<br>{}<br>repetitions: {}",
                link(&shown.id),
                from.nic,
                from.gpu,
                from.link,
                text(&source(shown)),
                repetitions(shown)
            )
        }
        None => "none".to_owned(),
    };
    let data = match line.judged.is_empty() {
        true => "none".to_owned(),
        false => {
            let mut names: Vec<&str> = line.judged.iter().map(|(shown, _)| shown.figure.as_str()).collect();
            names.dedup();
            let links = names.iter().map(|name| format!("<a href=\"#{name}-data\">{name}.csv</a>"));
            links.collect::<Vec<_>>().join(" ")
        }
    };
    format!(
        "<tr data-standing=\"{}\"><td>{} <code>{}</code><div class=\"note\">{}</div>{note}</td><td><a href=\"#{name}\">{number}</a></td>\
         <td>{}</td><td>{reason}{judged}{criterion}</td><td>{provenance}</td><td>{data}</td></tr>\n",
        line.standing.key(),
        text(&claim.text),
        text(&claim.id),
        text(&claim.source),
        badge(line.standing, &line.said),
    )
}

/// The plots' colours as they are in light, and in dark with enough white that they stand out there.
fn colours() -> String {
    let rule = |[light, dark]: &[String; 2]| {
        let both = format!("light-dark({light}, {dark})");
        format!("svg [fill=\"{light}\" i]{{fill:{both}}}svg [stroke=\"{light}\" i]{{stroke:{both}}}\n")
    };
    plot_colours().iter().map(rule).collect()
}
