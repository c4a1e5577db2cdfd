//! The search: every order of a program's steps, breadth first, so that the first failure is a shortest.

use std::collections::{HashMap, VecDeque};

use crate::device::Failure;
use crate::memory::{State, Step};
use crate::program::{Assumptions, Op, Place, Scenario};
use crate::rules::Rules;

/// States beyond which a program is too large for this search.
const MOST_STATES: usize = 2_000_000;

/// What a search found.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Different states that were visited: all there are, when nothing fails.
    pub states: usize,
    /// How many of them are good ends: everything has happened, every WQE was executed.
    pub ends: usize,
    pub witness: Option<Witness>,
}

/// A shortest way into a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Witness {
    pub failure: Failure,
    /// One line a step.
    pub trace: Vec<String>,
    /// The same in one sentence.
    pub sentence: String,
}

/// Tries everything that can happen.
pub fn explore(scenario: &Scenario, assume: Assumptions) -> Outcome {
    let rules = Rules::new(scenario, assume);
    let first = State::first(&rules);
    let mut numbers = HashMap::from([(first, 0_u32)]);
    let mut came_from: Vec<(u32, Option<Step>)> = vec![(0, None)];
    let mut waiting = VecDeque::from([first]);
    let mut choices = Vec::new();
    let mut ends = 0;
    while let Some(state) = waiting.pop_front() {
        let number = numbers[&state];
        state.choices(&rules, &mut choices);
        let found = |ends, failure, last| Outcome {
            states: came_from.len(),
            ends,
            witness: Some(witness(&rules, &way(&came_from, number, last), failure)),
        };
        if choices.iter().all(|choice| !choice.forced) {
            if let Some(failure) = state.at_rest(&rules) {
                return found(ends, failure, None);
            }
            ends += 1;
        }
        let mut reached = Vec::with_capacity(choices.len());
        for choice in &choices {
            match state.after(&rules, choice.step) {
                Ok(next) => reached.push((choice.step, next)),
                Err(failure) => return found(ends, failure, Some(choice.step)),
            }
        }
        for (step, next) in reached {
            let new = u32::try_from(came_from.len()).expect("MOST_STATES fits");
            numbers.entry(next).or_insert_with(|| {
                came_from.push((number, Some(step)));
                waiting.push_back(next);
                new
            });
        }
        assert!(came_from.len() <= MOST_STATES, "the program is too large for this search");
    }
    Outcome { states: came_from.len(), ends, witness: None }
}

/// Steps from the first state to the one numbered `to`, and one more.
fn way(came_from: &[(u32, Option<Step>)], to: u32, last: Option<Step>) -> Vec<Step> {
    let mut steps: Vec<Step> = last.into_iter().collect();
    let mut at = to;
    while let (before, Some(step)) = came_from[at as usize] {
        steps.push(step);
        at = before;
    }
    steps.reverse();
    steps
}

/// Walks the steps again, telling each.
fn witness(rules: &Rules, steps: &[Step], failure: Failure) -> Witness {
    let mut state = State::first(rules);
    let mut trace = Vec::new();
    // What told the NIC of the last WQE, and what made it forget one.
    let (mut told_by, mut forgot_by) = ("", "");
    for &step in steps {
        trace.push(line(rules, &state, step));
        let Ok(next) = state.after(rules, step) else { break };
        let source = if step == Step::ReadRecord { "record" } else { "register" };
        if next.nic.believed > state.nic.believed {
            told_by = source;
        } else if next.nic.believed < state.nic.believed {
            forgot_by = source;
        }
        state = next;
    }
    let sentence = sentence(rules, failure, told_by, forgot_by);
    trace.push(format!("fails: {sentence}{}", numbers(failure)));
    Witness { failure, trace, sentence }
}

/// Without numbers, so that rows that fail alike read alike.
fn sentence(rules: &Rules, failure: Failure, told_by: &str, forgot_by: &str) -> String {
    match failure {
        Failure::Stale { .. } => format!("the {told_by} tells the NIC of a WQE that is not there yet"),
        Failure::Lost { .. } if forgot_by == "record" => {
            "the NIC reads an older record again, forgets what the register said, and nobody rings any more"
                .into()
        }
        Failure::Lost { .. } if forgot_by == "register" => {
            "an older register write arrives last, and the NIC forgets the newer index".into()
        }
        Failure::Lost { .. } if rules.resting != 0 => {
            "the register write rests in the write-combining buffer".into()
        }
        Failure::Lost { .. } => "nobody rings for a WQE".into(),
        Failure::Backwards { .. } => "the doorbell goes backwards".into(),
        Failure::RecordBehind { .. } => "an older index is stored last: the record stays behind".into(),
        Failure::Read { cell, saw, .. } => {
            let when = if saw == 0 { "before it is there" } else { "after the NIC wrote over it" };
            format!("{} is read {when}", rules.scenario.cells[cell].name)
        }
        Failure::Stuck => "a thread waits for ever".into(),
    }
}

fn numbers(failure: Failure) -> String {
    match failure {
        Failure::Stale { wqe } | Failure::Lost { wqe } => format!(" (WQE {wqe})"),
        Failure::RecordBehind { says } | Failure::Backwards { says } => format!(" (at {says})"),
        Failure::Read { saw, wanted, .. } => format!(" ({saw}, not {wanted})"),
        Failure::Stuck => String::new(),
    }
}

fn line(rules: &Rules, state: &State, step: Step) -> String {
    let cell_name = |cell: usize| &rules.scenario.cells[cell].name;
    match step {
        Step::Perform { thread, op } => {
            let name = rules.scenario.threads[thread].name;
            match rules.scenario.threads[thread].ops[op].op {
                Op::Store { cell, value, .. } => {
                    format!("{name} stores {} = {}", cell_name(cell), state.value(thread, value))
                }
                Op::Await { cell, value, .. } => format!("{name} sees {} = {value}", cell_name(cell)),
                Op::Expect { cell, .. } => format!("{name} reads {}", cell_name(cell)),
                Op::Atomic { cell, does, .. } => format!("{name}: {does:?} of {}", cell_name(cell)),
                Op::Peek { cell, .. } => format!("{name} looks at {}", cell_name(cell)),
                Op::Scan { .. } => format!("{name} walks the marks"),
                other => format!("{name}: {other:?}"),
            }
        }
        Step::Arrive { id } => {
            let cell = rules.store(id).2;
            let at = match rules.scenario.cells[cell].place {
                Place::Register => "the NIC",
                Place::Host => "host memory",
                Place::Gpu | Place::Shared => "GPU memory",
            };
            format!("    {} = {} arrives at {at}", cell_name(cell), state.flying_value(id))
        }
        Step::ReadRecord => "    the NIC reads the record".to_owned(),
        Step::Fetch => "    the NIC fetches what it believes in".to_owned(),
    }
}
