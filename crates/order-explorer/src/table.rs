//! The tables, as Markdown, and the failing interleavings step by step.

use std::fmt::Write;

use crate::explore::{Outcome, explore};
use crate::program::{Assumptions, Belief};
use crate::rows::{Row, polling, posting};

/// Posting, polling, and what fails without each piece of ours: the tables of the documentation.
pub fn all() -> [String; 3] {
    [of_posting(), of_polling(), of_pieces()]
}

fn of_posting() -> String {
    let mut text = head(&[
        "order",
        "poster",
        "ring, record",
        "index only grows",
        "last index wins",
        "states",
        "how it fails",
    ]);
    for row in posting() {
        let grows = explore(&row.scenario, Assumptions { belief: Belief::Grows, ..row.assume });
        let last = explore(&row.scenario, Assumptions { belief: Belief::LastWins, ..row.assume });
        let how = sentence(&grows).or_else(|| sentence(&last)).unwrap_or_default();
        let states = last.states.max(grows.states).to_string();
        push_row(
            &mut text,
            &[row.order, row.poster, row.memory, verdict(&grows), verdict(&last), &states, &how],
        );
    }
    text
}

fn of_polling() -> String {
    let mut text = head(&["ours", "poller or poster", "CQ, ring", "verdict", "states", "how it fails"]);
    for row in polling() {
        let outcome = explore(&row.scenario, row.assume);
        let how = sentence(&outcome).unwrap_or_default();
        let states = outcome.states.to_string();
        push_row(&mut text, &[row.order, row.poster, row.memory, verdict(&outcome), &states, &how]);
    }
    text
}

fn of_pieces() -> String {
    let mut text = head(&["ours without", "how it fails", "found in"]);
    for ((label, how), rows) in removals() {
        push_row(&mut text, &[&format!("`{label}`"), &how, &rows.join("; ")]);
    }
    text
}

/// For each piece of ours that was taken out, and each way to fail then: the rows, in their order.
fn removals() -> Vec<((&'static str, String), Vec<String>)> {
    let mut found: Vec<((&str, String), Vec<String>)> = Vec::new();
    for row in posting().into_iter().chain(polling()).filter(|row| row.ours) {
        for label in row.scenario.labels() {
            let outcome = explore(&row.scenario.without(label), row.assume);
            let how = sentence(&outcome).unwrap_or_else(|| "**nothing fails**".to_owned());
            let place = format!("{}, {}", row.order.trim_start_matches("ours, "), row.poster);
            match found.iter_mut().find(|(key, _)| *key == (label, how.clone())) {
                Some((_, rows)) => rows.push(place),
                None => found.push(((label, how), vec![place])),
            }
        }
    }
    found
}

/// Failing interleavings of the rows, and of ours with a piece taken out, whose name has `wanted` in it.
pub fn traces(wanted: &str) -> String {
    let mut text = String::new();
    for row in posting().into_iter().chain(polling()).filter(|row| name(row).contains(wanted)) {
        push_trace(&mut text, &name(&row), &explore(&row.scenario, row.assume));
        for label in row.scenario.labels().into_iter().filter(|_| row.ours) {
            let outcome = explore(&row.scenario.without(label), row.assume);
            push_trace(&mut text, &format!("{} without {label}", name(&row)), &outcome);
        }
    }
    text
}

/// What tells a row from the others.
pub fn name(row: &Row) -> String {
    format!("{}, {}, {}", row.order, row.poster, row.memory)
}

fn head(titles: &[&str]) -> String {
    let mut text = String::new();
    push_row(&mut text, titles);
    push_row(&mut text, &vec!["---"; titles.len()]);
    text
}

fn verdict(outcome: &Outcome) -> &'static str {
    if outcome.witness.is_some() { "**fails**" } else { "holds" }
}

fn sentence(outcome: &Outcome) -> Option<String> {
    outcome.witness.as_ref().map(|witness| witness.sentence.clone())
}

fn push_row(text: &mut String, cells: &[&str]) {
    let _ = writeln!(text, "| {} |", cells.join(" | "));
}

fn push_trace(text: &mut String, name: &str, outcome: &Outcome) {
    let _ = match &outcome.witness {
        None => {
            writeln!(text, "{name}: holds in all {} states, {} of them ends", outcome.states, outcome.ends)
        }
        Some(witness) => writeln!(text, "{name}:\n  {}", witness.trace.join("\n  ")),
    };
}
