//! `cargo xtask bench-nic`: how fast the software NIC is, against what two processes can do without one.
//!
//! Every repetition takes each number once, so that a ratio's two numbers share the machine's mood; the median over the
//! repetitions of each ratio is what counts.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use measure::{Label, Provenance};
use serde::Serialize;

use crate::figure::{self, Programs};
use crate::refused::refused;
use crate::report::statistics::median;
use crate::setup::{self, Purpose};
use crate::workspace::root;

mod measures;
mod pair;

use measures::{MEASURES, Measure, RATIOS, Ratio};
use pair::Stand;

/// Options of `bench-nic`.
#[derive(Args)]
pub struct Options {
    /// Two short repetitions, no long waits.
    #[arg(long)]
    quick: bool,
    /// Repetitions.
    #[arg(long, default_value_t = 5)]
    repeat: u32,
    /// Where the JSON and the logs go.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Only the numbers whose names contain this.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Install nothing; what is missing ends the run with exit status 2.
    #[arg(long)]
    no_install: bool,
}

/// One number over the repetitions.
#[derive(Debug, Serialize)]
struct Number {
    name: &'static str,
    unit: &'static str,
    median: Option<f64>,
    values: Vec<Option<f64>>,
    /// Why a value is missing.
    errors: Vec<String>,
    /// What the C prototype reached on two cores.
    prototype: Option<f64>,
}

/// One ratio, or one number with an aim.
#[derive(Debug, Serialize)]
struct Line {
    name: &'static str,
    median: Option<f64>,
    aim: String,
    met: Option<bool>,
}

#[derive(Serialize)]
struct Report<'a> {
    label: Label,
    provenance: &'a Provenance,
    numbers: &'a [Number],
    ratios: &'a [Line],
}

/// The NIC as the prototype was measured: InfiniBand and strict; the pump off or on.
fn nic_toml(pump: bool) -> String {
    format!(
        "link_layer = \"ib\"\npath = \"shm\"\nstrict = true\ndoorbell_order = \"strict\"\nmtu = 4096\npump = {pump}\n"
    )
}

/// Takes all numbers, prints the table, writes `bench-nic.json`. A missed aim is no failure: it is a result.
pub fn run(options: &Options) -> Result<()> {
    let chosen: Vec<&Measure> = MEASURES
        .iter()
        .filter(|measure| options.only.as_ref().is_none_or(|only| measure.name.contains(only.as_str())))
        .filter(|measure| !(options.quick && measure.once))
        .collect();
    if chosen.is_empty() {
        let names: Vec<&str> = MEASURES.iter().map(|measure| measure.name).collect();
        return Err(refused(format!("--only: no number is called so; there are: {}", names.join("; "))));
    }
    setup::prepare(Purpose::Bench, options.no_install)?;
    figure::build()?;
    let out = options.out.clone().unwrap_or_else(|| root().join("results/bench-nic"));
    let logs = out.join("logs");
    fs::create_dir_all(&logs).map_err(|error| refused(format!("--out {}: {error}", out.display())))?;
    let (plain, pumped) = (out.join("nic.toml"), out.join("nic-pump.toml"));
    for (path, pump) in [(&plain, false), (&pumped, true)] {
        fs::write(path, nic_toml(pump)).with_context(|| format!("writing {}", path.display()))?;
    }
    let programs = Programs::release();
    let seconds = if options.quick { 0.3 } else { 1.0 };
    let stand = Stand { programs: &programs, plain, pumped, logs: &logs, seconds };
    let repeat = if options.quick { 2 } else { options.repeat };
    let numbers = take_all(&stand, &chosen, repeat)?;
    let ratios = lines(&numbers);

    let mut provenance = Provenance::collect(&root(), &["libibverbs.so", "libmlx5.so"]);
    (provenance.nic, provenance.link) = (Label::Emulated, Label::Emulated);
    provenance.versions.insert("profile".into(), "release".into());
    let report =
        Report { label: Label::Emulated, provenance: &provenance, numbers: &numbers, ratios: &ratios };
    let path = out.join("bench-nic.json");
    let json = serde_json::to_string_pretty(&report).context("writing bench-nic.json")? + "\n";
    fs::write(&path, json).with_context(|| format!("writing {}", path.display()))?;
    say!("{}", table(&numbers, &ratios));
    say!(
        "label: emulated (nic: emulated, gpu: none, link: emulated); {}; {}",
        provenance.machine,
        path.display()
    );
    Ok(())
}

fn take_all(stand: &Stand<'_>, chosen: &[&Measure], repeat: u32) -> Result<Vec<Number>> {
    let number = |measure: &&Measure| Number {
        name: measure.name,
        unit: measure.unit,
        median: None,
        values: Vec::new(),
        errors: Vec::new(),
        prototype: measure.prototype,
    };
    let mut numbers: Vec<Number> = chosen.iter().map(number).collect();
    let bar = ProgressBar::new(u64::from(repeat) * chosen.len() as u64);
    bar.set_style(
        ProgressStyle::with_template("{bar:30} {pos}/{len}  {msg}  {elapsed}")
            .context("the bar's template")?,
    );
    for repetition in 0..repeat {
        for (measure, number) in chosen.iter().zip(&mut numbers) {
            bar.set_message(measure.name);
            if repetition == 0 || !measure.once {
                match stand.take(&measure.source) {
                    Ok(value) => number.values.push(Some(value)),
                    // One program that fails must not hide what the others say.
                    Err(error) => {
                        number.values.push(None);
                        number.errors.push(format!("{error:#}"));
                    }
                }
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    for number in &mut numbers {
        let values: Vec<f64> = number.values.iter().copied().flatten().collect();
        number.median = median(&values);
    }
    Ok(numbers)
}

fn lines(numbers: &[Number]) -> Vec<Line> {
    let values = |name: &str| {
        numbers.iter().find(|number| number.name == name).map_or(&[][..], |number| &number.values)
    };
    let line = |ratio: &Ratio| {
        let quotients: Vec<f64> = match ratio.by {
            None => values(ratio.of).iter().copied().flatten().collect(),
            Some(by) => {
                values(ratio.of).iter().zip(values(by)).filter_map(|(of, by)| Some((*of)? / (*by)?)).collect()
            }
        };
        let median = median(&quotients);
        let aim = match ratio.aim {
            measures::Aim::Report => "reported".to_owned(),
            measures::Aim::AtLeast(aim) => format!("≥ {aim}"),
            measures::Aim::AtMost(aim) => format!("≤ {aim}"),
        };
        Line { name: ratio.name, median, aim, met: median.and_then(|median| ratio.aim.met(median)) }
    };
    RATIOS.iter().map(line).collect()
}

fn table(numbers: &[Number], ratios: &[Line]) -> String {
    let shown = |value: Option<f64>| match value {
        None => "—".to_owned(),
        Some(large) if large >= 1e5 => format!("{:.2} M", large / 1e6),
        Some(value) => format!("{value:.3}"),
    };
    let by_repetition: BTreeMap<&str, BTreeMap<usize, f64>> = numbers
        .iter()
        .map(|number| {
            (
                number.name,
                number.values.iter().enumerate().filter_map(|(at, value)| Some((at, (*value)?))).collect(),
            )
        })
        .collect();
    let mut text = vec![format!("{:34} {:>12} {:>24}  {:12} prototype", "number", "median", "range", "unit")];
    for number in numbers {
        let values = by_repetition[number.name].values().copied();
        let least = values.clone().fold(f64::INFINITY, f64::min);
        let most = values.clone().fold(f64::NEG_INFINITY, f64::max);
        let range = if number.median.is_some() {
            format!("{} – {}", shown(Some(least)), shown(Some(most)))
        } else {
            String::new()
        };
        let prototype = number.prototype.map_or_else(String::new, |value| shown(Some(value)));
        text.push(format!(
            "{:34} {:>12} {range:>24}  {:12} {prototype}",
            number.name,
            shown(number.median),
            number.unit
        ));
        text.extend(number.errors.iter().map(|error| format!("    {error}")));
    }
    text.push(String::new());
    for line in ratios.iter().filter(|line| line.median.is_some()) {
        let met = match line.met {
            None => "",
            Some(true) => "met",
            Some(false) => "MISSED",
        };
        text.push(format!("{:54} {:>10}  {:10} {met}", line.name, shown(line.median), line.aim));
    }
    text.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(name: &'static str, values: &[Option<f64>]) -> Number {
        let median = median(&values.iter().copied().flatten().collect::<Vec<_>>());
        Number { name, unit: "x", median, values: values.to_vec(), errors: vec![], prototype: None }
    }

    #[test]
    fn a_ratio_compares_within_its_repetition() {
        // The machine halves its speed in the second repetition: the ratio does not notice.
        let numbers = [
            number("write 64 KiB", &[Some(9.0), Some(4.5), None]),
            number("process_vm_writev 64 KiB", &[Some(10.0), Some(5.0), Some(1.0)]),
        ];
        let lines = lines(&numbers);
        assert_eq!((lines[0].median, lines[0].met), (Some(0.9), Some(true)));
        assert_eq!((lines[1].median, lines[1].met), (None, None));
    }

    #[test]
    fn a_missed_aim_and_a_failed_program_show() {
        let mut numbers = [number("send 8 B", &[Some(1e6)]), number("write 8 B", &[None])];
        numbers[1].errors.push("ib_write_bw: no".into());
        let table = table(&numbers, &lines(&numbers));
        assert!(
            table.contains("MISSED") && table.contains("ib_write_bw: no") && table.contains("1.00 M"),
            "{table}"
        );
    }
}
