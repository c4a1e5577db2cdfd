//! What a run gave, for people and for programs: numbers with their ranges, aims with what became of them.

use measure::{Label, Provenance};
use serde::{Deserialize, Serialize};

use super::measures::{AIMS, Aim, MEASURES, Measure, Verdict};
use crate::measured;
use experiment::statistics::median;

/// One run; `bench-nic.json` holds it, and `--record` keeps it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Processor and cores.
    pub machine: String,
    /// Weakest label of the run.
    pub label: Label,
    /// `quick` or `full`.
    pub extent: String,
    /// Cores of the server and of the client; `None` where they were not pinned.
    pub pinned: Option<[String; 2]>,
    /// Where it comes from.
    pub provenance: Provenance,
    /// What was measured.
    pub numbers: Vec<Number>,
    /// What was aimed at.
    pub aims: Vec<Judged>,
}

/// One number over the repetitions.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Number {
    /// As in [`super::measures::MEASURES`].
    pub name: String,
    /// Its unit.
    pub unit: String,
    /// Whether the NIC also ran inside the program's `ibv_poll_cq`.
    pub pump: bool,
    /// Median of the values that there are.
    pub median: Option<f64>,
    /// One for each repetition; `None` where it failed.
    pub values: Vec<Option<f64>>,
    /// Why a value is missing.
    pub errors: Vec<String>,
}

/// One aim, and what became of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Judged {
    /// As in [`AIMS`].
    pub name: String,
    /// Median over the repetitions of the number, or of the ratio within each repetition.
    pub measured: Option<f64>,
    /// In words.
    pub aim: String,
    /// What became of it.
    pub verdict: Verdict,
}

impl measured::Entry for Run {
    experiment::where_from!();

    fn empty(&self) -> Option<&'static str> {
        let times =
            |measure: &Measure| self.numbers.iter().filter(|number| number.name == measure.name).count();
        // A machine without namespaces has none of those between two hosts.
        let hosts: Vec<usize> = MEASURES.iter().filter(|measure| measure.needs_hosts()).map(times).collect();
        let alike = hosts.iter().all(|count| *count == hosts[0]) && hosts[0] <= 1;
        let others = MEASURES
            .iter()
            .filter(|measure| !measure.needs_hosts())
            .all(|measure| times(measure) == 1 || measure.came_later() && times(measure) == 0);
        let known: usize = MEASURES.iter().map(times).sum();
        if !alike || !others || known != self.numbers.len() {
            return Some("does not hold every number of bench-nic exactly once");
        }
        if !self.numbers.iter().all(Number::whole) {
            return Some("has numbers that were not measured");
        }
        let right = self.numbers.iter().all(|number| same(number.median, number.median_of_values()));
        (!right).then_some("has a median that its values do not give")
    }
}

impl Run {
    /// Judges anew, by the aims of today, what came from elsewhere. The name of an aim that the numbers contradict is an
    /// error; one that the run lacks, or that was another then, is no contradiction.
    pub fn judge_again(&mut self) -> Result<(), String> {
        let aims = judge(&self.numbers, self.provenance.cores);
        for said in &self.aims {
            let today = aims.iter().find(|today| today.name == said.name && today.aim == said.aim);
            let right = |today: &Judged| today.verdict == said.verdict && same(today.measured, said.measured);
            if !today.is_none_or(right) {
                return Err(said.name.clone());
            }
        }
        self.aims = aims;
        Ok(())
    }
}

/// Whether two numbers are one, but for what printing and reading may cost.
fn same(one: Option<f64>, other: Option<f64>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => (one - other).abs() <= 1e-9 * one.abs().max(other.abs()),
        (None, None) => true,
        _ => false,
    }
}

impl Number {
    /// None yet.
    pub fn of(measure: &Measure) -> Number {
        Number {
            name: measure.name.to_owned(),
            unit: measure.unit.to_owned(),
            pump: measure.pump(),
            median: None,
            values: Vec::new(),
            errors: Vec::new(),
        }
    }

    /// Adds a repetition.
    pub fn add(&mut self, value: anyhow::Result<f64>) {
        match value {
            Ok(value) => self.values.push(Some(value)),
            Err(error) => {
                self.values.push(None);
                self.errors.push(format!("{error:#}"));
            }
        }
        self.median = self.median_of_values();
    }

    fn median_of_values(&self) -> Option<f64> {
        median(&self.values.iter().copied().flatten().collect::<Vec<_>>())
    }

    /// Whether every repetition gave a value.
    pub fn whole(&self) -> bool {
        self.median.is_some() && self.errors.is_empty() && self.values.iter().all(Option::is_some)
    }
}

/// Every aim that one of these numbers, of a machine with so many cores, is about.
pub fn judge(numbers: &[Number], cores: usize) -> Vec<Judged> {
    let number = |name: &str| numbers.iter().find(|number| number.name == name);
    let judged = |aim: &Aim| {
        let of = number(aim.of)?;
        let quotients: Vec<f64> = match aim.by {
            None => of.values.iter().copied().flatten().collect(),
            // Within a repetition: both numbers share the machine's mood.
            Some(by) => {
                let by = number(by)?;
                of.values.iter().zip(&by.values).filter_map(|(of, by)| Some((*of)? / (*by)?)).collect()
            }
        };
        let measured = median(&quotients);
        let target = aim.target_on(cores);
        let verdict = target.judge(measured);
        Some(Judged { name: aim.name.to_owned(), measured, aim: target.text(), verdict })
    };
    AIMS.iter().filter_map(judged).collect()
}

/// The table, ready to print.
pub fn table(numbers: &[Number], aims: &[Judged]) -> String {
    let mut text = vec![format!("{:38} {:>12} {:>24}  unit", "number", "median", "range")];
    for number in numbers {
        let values = number.values.iter().copied().flatten();
        let least = values.clone().fold(f64::INFINITY, f64::min);
        let most = values.fold(f64::NEG_INFINITY, f64::max);
        let range = match number.median {
            Some(_) => format!("{} – {}", shown(Some(least)), shown(Some(most))),
            None => String::new(),
        };
        text.push(format!("{:38} {:>12} {range:>24}  {}", number.name, shown(number.median), number.unit));
        text.extend(number.errors.iter().map(|error| format!("    {error}")));
    }
    text.push(String::new());
    text.push(format!("{:50} {:>12}  {:12} verdict", "aim", "measured", "aim"));
    for aim in aims {
        let verdict = match aim.verdict {
            Verdict::Met => "met",
            Verdict::NotMet => "NOT MET",
            Verdict::Reported => "reported",
            Verdict::NotMeasured => "NOT MEASURED",
        };
        text.push(format!("{:50} {:>12}  {:12} {verdict}", aim.name, shown(aim.measured), aim.aim));
    }
    text.join("\n")
}

fn shown(value: Option<f64>) -> String {
    match value {
        None => "—".to_owned(),
        Some(large) if large >= 1e5 => format!("{:.2} M", large / 1e6),
        Some(value) => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench_nic::measures::MEASURES;

    fn number(name: &str, values: &[Option<f64>]) -> Number {
        let mut number = Number::of(MEASURES.iter().find(|measure| measure.name == name).unwrap());
        values.iter().for_each(|value| number.add(value.ok_or_else(|| anyhow::anyhow!("it said no"))));
        number
    }

    #[test]
    fn a_ratio_compares_within_its_repetition() {
        // The machine halves its speed in the second repetition: the ratio does not notice.
        let numbers = [
            number("write 64 KiB", &[Some(9.0), Some(4.5), None]),
            number("process_vm_writev 64 KiB", &[Some(10.0), Some(5.0), Some(1.0)]),
        ];
        let aims = judge(&numbers, 4);
        assert_eq!(aims.len(), 1);
        assert_eq!((aims[0].measured, aims[0].verdict), (Some(0.9), Verdict::Met));
        assert_eq!(judge(&numbers, 2)[0].verdict, Verdict::Reported, "no core for its NIC");
    }

    #[test]
    fn a_missed_aim_a_missing_number_and_its_reason_show() {
        let numbers = [number("send 8 B", &[Some(1e6)]), number("write 8 B", &[None])];
        let table = table(&numbers, &judge(&numbers, 16));
        for part in ["NOT MET", "NOT MEASURED", "it said no", "1.00 M", "≥ 3000000"] {
            assert!(table.contains(part), "no `{part}` in\n{table}");
        }
        assert!(numbers[0].whole() && !numbers[1].whole());
    }
}
