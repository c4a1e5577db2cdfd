//! The section of one figure: the published source, drawings by entry, where each comes from, numbers, and verdicts side by side.

use experiment::point::revision;
use experiment::table::{self, Row};
use experiment::verdict::{Judged, Verdict};
use measure::provenance::Host;

use super::claims::{ClaimStatus, Line};
use super::figures::{Drawn, Figure, Shown};
use super::html::{attribute, data_link, prose, table as html_table, text};
use crate::figure::serving;

/// Evidence that is shown at once; more unfolds.
const EVIDENCE: usize = 2;

pub fn section(figure: &Figure, lines: &[Line<'_>]) -> String {
    let (number, name, source) = (figure.number(), figure.name(), &figure.paper.paper);
    let title = text(&figure.experiment.spec.title);
    let mut out = format!("<section id=\"{name}\">\n<h2><span>Figure {number}</span> {title}</h2>\n");
    out += &format!("<p class=\"published\"><b>Published.</b> {}</p>\n", text(source.source.trim()));
    if !figure.is_recorded() {
        let alone = if figure.alone.is_empty() { "" } else { " The published series stand alone." };
        let missing = prose(&figure.missing());
        out += &format!("<p class=\"missing\"><b>Not recorded yet:</b> {missing}.{alone}</p>\n");
    }
    out += &entries(figure);
    out += &figure.alone.iter().map(drawing).collect::<String>();
    if !figure.steps.is_empty() {
        let titles = ["", "where", "function", "what it does", "file"].map(str::to_owned);
        let row = |(at, step): (usize, &[String; 4])| {
            let [lane, function, says, file] = step;
            [format!("{}", at + 1), text(lane), code(function), text(says), code(file)].into()
        };
        let rows: Vec<Vec<String>> = figure.steps.iter().enumerate().map(row).collect();
        out += &format!("<h3>Its steps, found in the source</h3>\n{}", html_table(&titles, &rows));
    }
    out += &side_by_side(figure, lines);
    out += &format!("<h3 id=\"{name}-data\">Raw data</h3>\n<p>{}</p>\n</section>\n", downloads(figure));
    out
}

/// A tab for each entry, or the only one.
fn entries(figure: &Figure) -> String {
    let count = figure.shown.len();
    let tab = |(at, shown): (usize, &Shown)| {
        let checked = if at == 0 { " checked" } else { "" };
        let (name, id) = (figure.name(), attribute(&shown.id));
        let of = text(&shown.entry.subject()) + &marked(shown);
        format!(
            "<input type=\"radio\" name=\"{name}\" id=\"t{id}\"{checked}><label for=\"t{id}\"><b>{id}</b> {of}</label>\n"
        )
    };
    let tabs: String = figure.shown.iter().enumerate().filter(|_| count > 1).map(tab).collect();
    let panel = |shown: &Shown| {
        let (id, of) = (attribute(&shown.id), text(&shown.entry.subject()) + &marked(shown));
        let pictures: String = shown.pictures.iter().map(drawing).collect();
        let cells = table::cells(&figure.experiment.spec, &shown.entry.rows);
        let cells: Vec<Vec<String>> =
            cells.into_iter().map(|line| line.iter().map(|cell| text(cell)).collect()).collect();
        let numbers = cells.split_first().map_or_else(String::new, |(titles, rows)| html_table(titles, rows));
        let rows = shown.entry.rows.len();
        let threads = threads(&shown.entry.rows);
        format!(
            "<div class=\"panel\" id=\"e{id}\">\n<h3><span>{id}</span> {of}</h3>\n{pictures}{}\
             <details><summary>Its numbers: medians (rows: {rows})</summary>\n{numbers}</details>\n{threads}{}</div>\n",
            provenance(shown),
            samples(shown)
        )
    };
    let panels: String = figure.shown.iter().map(panel).collect();
    match count {
        0 => String::new(),
        1 => panels,
        _ => format!("<div class=\"tabs\">\n{tabs}{panels}</div>\n"),
    }
}

/// Cores of each of a server's threads, where an entry has them.
fn threads(rows: &[Row]) -> String {
    let lines = serving::threads::table(rows);
    let lines: Vec<Vec<String>> =
        lines.iter().map(|line| line.iter().map(|cell| text(cell)).collect()).collect();
    match lines.split_first() {
        Some((titles, rows)) if !rows.is_empty() => {
            format!("<details><summary>CPU use by thread</summary>\n{}</details>\n", html_table(titles, rows))
        }
        _ => String::new(),
    }
}

fn drawing(drawn: &Drawn) -> String {
    let Drawn { stem, picture } = drawn;
    let (stem, title) = (attribute(stem), text(&picture.title));
    let label = format!("<svg role=\"img\" aria-label=\"{}\" ", attribute(&picture.title));
    let svg = picture.svg.replacen("<svg ", &label, 1);
    let links =
        ["svg", "png", "pdf"].map(|kind| format!("<a href=\"{stem}.{kind}\">{}</a>", kind.to_uppercase()));
    format!(
        "<figure>\n<div class=\"plot\" tabindex=\"0\">{svg}</div>\n<figcaption>{title} <span class=\"files\">{}</span></figcaption>\n\
         </figure>\n",
        links.join(" ")
    )
}

/// What machine, GPU and NIC did during the run, where that was sampled.
fn samples(shown: &Shown) -> String {
    let samples = &shown.entry.samples;
    let gauges = samples.gauges_in_words().into_iter().map(|(name, said)| [code(&name), text(&said)].into());
    let counts = samples.counts_in_words().into_iter().map(|(name, said)| [code(&name), text(&said)].into());
    let rows: Vec<Vec<String>> = gauges.chain(counts).collect();
    if rows.is_empty() {
        return String::new();
    }
    let titles = ["sample", "median (least–most), or by how much it grew in all"].map(str::to_owned);
    format!(
        "<details><summary>Samples of machine, GPU and NIC (rows: {})</summary>\n{}</details>\n",
        rows.len(),
        html_table(&titles, &rows)
    )
}

/// Where an entry comes from.
fn provenance(shown: &Shown) -> String {
    let (entry, from) = (&shown.entry, &shown.entry.provenance);
    let device = |name: &str| if name.is_empty() { String::new() } else { format!(" ({name})") };
    let load = from.load.map_or_else(String::new, |load| format!(", load in the minute before: {load:.1}"));
    let list = |all: Vec<String>| if all.is_empty() { "none".to_owned() } else { all.join(", ") };
    let versions = from.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
    let options = from.nic_options.iter().map(|(name, value)| format!("{name} = {value}")).collect();
    let of_host = |host: &Host| {
        let versions = host.versions.iter().map(|(name, version)| format!(", {name} {version}"));
        format!("{}: {}{}", host.name, host.machine, versions.collect::<String>())
    };
    let hosts = from.hosts.iter().map(of_host).collect::<Vec<_>>().join("; ");
    let machine = if hosts.is_empty() { ("machine", &from.machine) } else { ("sender; receiver", &hosts) };
    let rows = [
        ("label", format!("{}: the weakest part", entry.label)),
        (machine.0, format!("{}{load}", machine.1)),
        ("NIC", format!("{}{}", from.nic, device(&from.device))),
        ("GPU", format!("{}{}", from.gpu, device(&from.gpu_device))),
        ("link", from.link.to_string()),
        ("repetitions", format!("{}, extent {}", repetitions(shown), entry.extent)),
        ("source", source(shown)),
        ("versions", list(versions)),
        ("NIC's options", list(options)),
        ("kept in", shown.from.clone()),
    ];
    let rows: String =
        rows.iter().map(|(name, said)| format!("<dt>{name}</dt><dd>{}</dd>\n", text(said))).collect();
    format!("<dl class=\"provenance\">\n{rows}</dl>\n")
}

/// Revision, and the day of its commit.
pub fn source(shown: &Shown) -> String {
    let day = shown.day.as_ref().map_or(" (not in this repository)".to_owned(), |day| format!(" of {day}"));
    format!("{}{day}", revision(&shown.entry.provenance))
}

/// Least and most of its rows.
pub fn repetitions(shown: &Shown) -> String {
    let counts = || shown.entry.rows.iter().map(|row| row.repetitions);
    match (counts().min().unwrap_or(0), counts().max().unwrap_or(0)) {
        (least, most) if least == most => most.to_string(),
        (least, most) => format!("{least} to {most}"),
    }
}

/// The verdict of each entry on each claim and aim, and what it rests on.
fn side_by_side(figure: &Figure, lines: &[Line<'_>]) -> String {
    let own: Vec<&Line<'_>> = lines.iter().filter(|line| line.figure.number() == figure.number()).collect();
    let aims = figure.shown.iter().flat_map(|shown| &shown.judged).filter(|one| one.aim);
    let mut names: Vec<(&str, &str)> =
        own.iter().map(|line| (line.claim.id.as_str(), line.claim.text.as_str())).collect();
    for aim in aims {
        if names.iter().all(|(id, _)| *id != aim.id) {
            names.push((&aim.id, &aim.text));
        }
    }
    let mut titles = vec!["claim or aim".to_owned()];
    titles.extend(figure.shown.iter().map(|shown| link(&shown.id) + &marked(shown)));
    titles.extend(figure.shown.is_empty().then(|| "verdict".to_owned()));
    let cells = |(id, said): &(&str, &str)| {
        let line = own.iter().find(|line| line.claim.id == *id);
        let mut cells = vec![format!("{} {}", text(said), code(id))];
        let of = |shown: &Shown| match (shown.judged.iter().find(|one| one.id == *id), line) {
            (Some(one), _) => verdict(one),
            (None, _) if shown.is_smoke() => "smoke: not judged".to_owned(),
            (None, Some(line)) if line.judged.is_empty() => badge(line.standing, &line.said),
            (None, _) => "—".to_owned(),
        };
        cells.extend(figure.shown.iter().map(of));
        cells.extend(line.filter(|_| figure.shown.is_empty()).map(|line| badge(line.standing, &line.said)));
        cells
    };
    let rows: Vec<Vec<String>> = names.iter().map(cells).collect();
    format!("<h3>Verdicts, by entry</h3>\n{}", html_table(&titles, &rows))
}

fn verdict(one: &Judged) -> String {
    let badge = badge(ClaimStatus::of(&one.verdict), &one.said());
    format!("{badge} {}", evidence(one))
}

/// What a verdict rests on, the first lines at once.
pub fn evidence(one: &Judged) -> String {
    // The verdict says all of it.
    if matches!(one.verdict, Verdict::NeedsHardware(_)) {
        return String::new();
    }
    let (first, more) = one.evidence.split_at(one.evidence.len().min(EVIDENCE));
    let lines = |all: &[String]| all.iter().map(|line| text(line)).collect::<Vec<_>>().join("<br>");
    let more = match more.len() {
        0 => String::new(),
        count => format!("<details><summary>{count} more</summary>{}</details>", lines(more)),
    };
    format!("<div class=\"evidence\">{}{more}</div>", lines(first))
}

pub fn badge(standing: ClaimStatus, said: &str) -> String {
    format!("<span class=\"badge {}\">{}</span>", standing.key(), text(said))
}

/// What tells an added entry from a recorded one.
pub fn marked(shown: &Shown) -> String {
    shown.mark().map_or_else(String::new, |mark| format!(", {}", text(&mark)))
}

/// To an entry of the page.
pub fn link(id: &str) -> String {
    format!("<a href=\"#e{0}\">{0}</a>", attribute(id))
}

fn code(words: &str) -> String {
    format!("<code>{}</code>", text(words))
}

/// The figure's CSV, in the page itself and as a file beside it.
fn downloads(figure: &Figure) -> String {
    if !figure.has_numbers() {
        return prose("There is none: nothing is published as numbers, and nothing is recorded.");
    }
    let (name, csv) = (figure.name(), experiment::csv(&figure.entries(), &figure.paper));
    let target = data_link("text/csv", &csv);
    format!(
        "<a class=\"download\" download=\"{name}.csv\" href=\"{target}\">Download {name}.csv</a> \
         holds every recorded number with its range, and every published one (lines: {}). SVG, PNG and PDF lie beside this page.",
        csv.lines().count() - 1
    )
}
