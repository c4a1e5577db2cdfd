//! `cargo xtask figure all`: every figure in its own process, so one failure spares others; a summary.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use experiment::Experiment;
use experiment::spec::Grid;

use super::options::Options;
use crate::gpu_machine::GpuMachine;
use crate::refused::{NO_GPU, refused};
use crate::{carried, progress, shell, stop, workspace};

/// What stands for all of them on the command line.
pub const NAME: &str = "all";
/// In the order of measuring: the short ones first.
const FIGURES: [&str; 7] = ["3", "5", "4", "1", "2", "6", "7"];
/// Figures whose points are transfers: of `--peer` and `--rate-gbps`.
const TRANSFERS: [&str; 2] = ["4", "5"];
/// The figure whose points have no samples.
const UNSAMPLED: &str = "3";
/// Figures of models' runs: series of a GPU, or of the processor in its place.
const OF_MODELS: [&str; 2] = ["1", "2"];
/// Figures that are of a GPU alone; by the host twin they judge nothing, and take long.
const OF_A_GPU: [&str; 2] = ["6", "7"];
/// Said of the other figures where hosts are named.
const NO_NIC: &str = ", on this machine: no NIC has a part";

/// What came of a figure.
#[derive(Debug, PartialEq, Eq)]
enum FigureOutcome {
    Measured,
    /// What would be measured was said.
    Said,
    /// Exit code, or the signal.
    Failed(String),
    LeftOut(String),
}

/// Measures all; the error names what failed.
pub fn run(options: &Options) -> Result<()> {
    let why = "figure all --rate-gbps: a shaped link is another run; give an --out of its own";
    ensure!(options.out.is_some() || options.rate_gbps.is_none(), refused(why));
    let program = std::env::current_exe().context("finding out where this command itself lies")?;
    let machine = if options.dry_run { None } else { Some(GpuMachine::ask()?) };
    let no_gpu = machine.filter(|machine| machine.gpu().is_none()).map(|machine| machine.why_none());
    run_by(&program, options, no_gpu.as_deref())
}

/// Measures all by a program, which is a stand-in in tests. `no_gpu`: why there is no GPU.
fn run_by(program: &Path, options: &Options, no_gpu: Option<&str>) -> Result<()> {
    let again = shell::line(&words("all", &Options { resume: true, ..options.clone() }));
    let again = format!("go on with: {} {again}", workspace::us());
    // The figure that is stopped has said how it alone goes on.
    stop::goes_on_with(format!("; all of them {again}"));
    let mut came = Vec::new();
    let begun = Instant::now();
    // Another host tells of its GPU itself.
    let is_of_this_gpu = |figure: &str| OF_A_GPU.contains(&figure) && options.place().is_here();
    let is_left_out = |figure: &str| no_gpu.is_some() && is_of_this_gpu(figure) && options.machine.is_none();
    let asked_s = |figure| if is_left_out(figure) { 0.0 } else { asked_s(figure, options, no_gpu.is_some()) };
    let asked = FIGURES.map(asked_s);
    for (at, figure) in FIGURES.into_iter().enumerate() {
        let words = words(figure, options);
        let left = if options.dry_run { None } else { left(begun.elapsed(), &asked, at) };
        let left = left.map_or_else(String::new, |left| format!("; {} left", progress::about(left)));
        let nth = format!("{} of {}{left}", at + 1, FIGURES.len());
        let here = here(figure, options);
        say!("figure {figure} ({nth}){here}: {} {}", workspace::us(), shell::line(&words));
        let since = Instant::now();
        let what = match no_gpu.filter(|_| is_left_out(figure)) {
            Some(why) => {
                FigureOutcome::LeftOut(format!("no GPU here ({why}); --machine twin tries the command"))
            }
            None => match measured(program, &words)? {
                FigureOutcome::Measured if options.dry_run => FigureOutcome::Said,
                came => came,
            },
        };
        came.push((figure, what, since.elapsed()));
    }
    say!("");
    for (figure, what, took) in &came {
        say!("{}{}", line(figure, what, *took), here(figure, options));
    }
    let failed = came.iter().filter(|(_, what, _)| matches!(what, FigureOutcome::Failed(_)));
    let failed: Vec<&str> = failed.map(|(figure, ..)| *figure).collect();
    ensure!(failed.is_empty(), "figures that failed: {}; {again}", failed.join(", "));
    if !options.dry_run && carried::folder().is_none() {
        say!("one page of them {}", workspace::shown_by(options.out.as_deref()));
    }
    Ok(())
}

/// Seconds that the points of a grid ask for, and as long again for what each starts.
pub fn grid_s(grid: &Grid) -> f64 {
    grid.keys().iter().map(|key| 2.0 * grid.seconds_of(&key.series).max(0.1)).sum()
}

/// Of a figure's grid on this machine.
fn asked_s(figure: &str, options: &Options, no_gpu: bool) -> f64 {
    let Ok(experiment) = Experiment::read(&workspace::experiments(), &format!("fig{figure}")) else {
        return 0.0;
    };
    let mut grid = experiment.spec.grid(options.extent());
    let other = if no_gpu { "gpu-" } else { "cpu-" };
    if no_gpu || OF_MODELS.contains(&figure) {
        grid.series.retain(|series| !series.starts_with(other));
    }
    grid_s(&grid)
}

/// Seconds that figures must have asked for before their time predicts the others', and the largest slowdown
/// assumed for these: the first figures' time includes builds.
const TELLING_S: f64 = 5.0;
const SLOWER: f64 = 3.0;

/// Time left for the figures from `at` on, by the time that those before took per second asked for.
fn left(since: Duration, asked: &[f64], at: usize) -> Option<Duration> {
    let [before, after] = [&asked[..at], &asked[at..]].map(|part| part.iter().sum::<f64>());
    let slower = if before > TELLING_S { (since.as_secs_f64() / before).min(SLOWER) } else { 1.0 };
    Duration::try_from_secs_f64(after * slower).ok().filter(|left| !left.is_zero())
}

fn measured(program: &Path, words: &[String]) -> Result<FigureOutcome> {
    stop::hold();
    let status = Command::new(program).args(words).status().context("starting a figure")?;
    stop::hold_if_soon();
    Ok(match status.code() {
        Some(0) => FigureOutcome::Measured,
        Some(code) if code == i32::from(NO_GPU) => {
            FigureOutcome::LeftOut("no GPU on the server's host (why stands above)".into())
        }
        _ => FigureOutcome::Failed(status.to_string()),
    })
}

/// Where a figure runs, if that is not where the others run.
fn here(figure: &str, options: &Options) -> &'static str {
    let has_nic = TRANSFERS.contains(&figure) || OF_A_GPU.contains(&figure);
    if has_nic || options.on_nodes().is_none() { "" } else { NO_NIC }
}

/// A figure's command line: of the options those that it takes.
fn words(figure: &str, options: &Options) -> Vec<String> {
    let is_one_of = |figures: &[&str]| figures.contains(&figure) || figure == NAME;
    let (is_transfer, is_served) = (is_one_of(&TRANSFERS), is_one_of(&OF_A_GPU));
    let mut taken = options.clone();
    if !is_transfer {
        (taken.peer, taken.rate_gbps) = (None, None);
    }
    if !is_transfer && !is_served {
        (taken.place, taken.tune, taken.nic) = (None, false, None);
    }
    taken.machine = taken.machine.filter(|_| is_served);
    taken.counters_hook = taken.counters_hook.filter(|_| figure != UNSAMPLED);
    taken.out = taken.out.map(|out| if figure == NAME { out } else { out.join(format!("fig{figure}")) });
    taken.words(figure)
}

fn line(figure: &str, what: &FigureOutcome, took: Duration) -> String {
    let s = took.as_secs_f64();
    match what {
        FigureOutcome::Said => format!("figure {figure}: dry run"),
        FigureOutcome::Measured => format!("figure {figure}: measured in {s:.0} s"),
        FigureOutcome::Failed(how) => format!("figure {figure}: FAILED after {s:.0} s ({how})"),
        FigureOutcome::LeftOut(why) => format!("figure {figure}: left out: {why}"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Stdio;

    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;

    use super::*;
    use crate::figure::options::Machine;
    use crate::figure::place::Place;

    fn of(figure: &str, options: &Options) -> String {
        words(figure, options).join(" ")
    }

    #[test]
    fn each_figure_gets_the_options_that_it_takes() {
        let options = Options {
            smoke: true,
            resume: true,
            machine: Some(Machine::Twin),
            nic: Some("mlx5_1".into()),
            peer: Some("host".into()),
            peer_generator: "generator".into(),
            counters_hook: Some("hook".into()),
            out: Some("/o".into()),
            ..Options::default()
        };
        for (figure, expected) in [
            (
                "4",
                "figure 4 --smoke --resume --nic mlx5_1 --peer host --peer-generator generator --counters-hook hook --out /o/fig4",
            ),
            ("1", "figure 1 --smoke --resume --counters-hook hook --out /o/fig1"),
            ("3", "figure 3 --smoke --resume --out /o/fig3"),
            ("7", "figure 7 --smoke --resume --nic mlx5_1 --counters-hook hook --machine twin --out /o/fig7"),
            (
                "all",
                "figure all --smoke --resume --nic mlx5_1 --peer host --peer-generator generator --counters-hook hook --machine twin --out /o",
            ),
        ] {
            assert_eq!(of(figure, &options), expected);
        }
        assert_eq!(
            of("5", &Options { place: Some(Place::Netns), ..Options::default() }),
            "figure 5 --where netns"
        );
        let place = || Some(Place::Inventory("my hosts.yml".into()));
        for figure in ["4", "6"] {
            let said = of(figure, &Options { place: place(), ..Options::default() });
            assert_eq!(said, format!("figure {figure} --where my hosts.yml"));
        }
        let options = Options { place: place(), ..Options::default() };
        assert_eq!(of("1", &options), "figure 1");
        assert_eq!(["1", "2", "3"].map(|figure| here(figure, &options)), [NO_NIC; 3]);
        assert_eq!(["4", "7"].map(|figure| here(figure, &options)), [""; 2]);
        assert_eq!(here("1", &Options::default()), "");
    }

    #[test]
    fn a_host_without_a_gpu_leaves_figures_out_and_fails_nothing() {
        let folder = std::env::temp_dir().join(format!("xtask-figure-all-host-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let program = folder.join("xtask");
        let options = Options { place: Some(Place::Inventory("my.yml".into())), ..Options::default() };
        crate::process::script(&program, "#!/bin/sh\ncase $2 in 6) exit 3 ;; 7) exit 2 ;; esac\n");
        let error = run_by(&program, &options, None).unwrap_err();
        assert!(error.to_string().starts_with("figures that failed: 7; go on with: "), "{error}");
        crate::process::script(&program, "#!/bin/sh\n[ $2 != 6 ] || exit 3\n");
        run_by(&program, &options, None).unwrap();
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn the_time_left_goes_by_what_the_points_ask_for_and_what_the_others_took() {
        let s = Duration::from_secs;
        for (since, at, expected) in [(0, 0, Some(40)), (20, 1, Some(60)), (60, 2, Some(20)), (90, 3, None)] {
            assert_eq!(left(s(since), &[10.0, 20.0, 10.0], at), expected.map(s), "{at}");
        }
        // What asks for little says little, and a build is none of the next one's.
        assert_eq!(left(s(60), &[0.2, 10.0, 0.0], 1), Some(s(10)));
        assert_eq!(left(s(600), &[10.0, 10.0], 1), Some(s(30)));
        let quick = Options { quick: true, ..Options::default() };
        for figure in FIGURES {
            let [with, without] = [false, true].map(|no_gpu| asked_s(figure, &quick, no_gpu));
            assert!(with > 0.0, "figure {figure}");
            assert!(without < with || OF_MODELS.contains(&figure), "figure {figure}: {without} of {with} s");
        }
    }

    const STAGE: &str = "XTASK_TEST_FIGURE_ALL";

    #[test]
    fn a_signal_ends_the_figure_and_says_how_all_of_them_go_on() {
        let options = Options { quick: true, ..Options::default() };
        if let Some(folder) = std::env::var_os(STAGE).map(std::path::PathBuf::from) {
            crate::stop::watch().unwrap();
            panic!("it was not stopped: {:?}", run_by(&folder.join("xtask"), &options, Some("no driver")));
        }
        let folder = std::env::temp_dir().join(format!("xtask-figure-all-stopped-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let here = folder.join("here");
        crate::process::script(
            &folder.join("xtask"),
            &format!("#!/bin/sh\n: > {}\nexec sleep 60\n", here.display()),
        );
        let mut us = crate::process::one_test(
            "figure::all::tests::a_signal_ends_the_figure_and_says_how_all_of_them_go_on",
        );
        let us = us.env(STAGE, &folder).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let since = Instant::now();
        while !here.exists() {
            assert!(since.elapsed() < crate::process::WAIT, "no figure was started");
            std::thread::sleep(Duration::from_millis(5));
        }
        kill(Pid::from_raw(us.id().try_into().unwrap()), Signal::SIGINT).unwrap();
        let ended = us.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        let words = "stopped by a signal; all of them go on with: cargo xtask figure all --quick --resume\n";
        assert!(ended.status.code() == Some(130) && said.ends_with(words), "{said}");
        fs::remove_dir_all(folder).unwrap();
    }

    /// A stand-in that fails for one figure, and notes all.
    #[test]
    fn a_figure_that_fails_leaves_the_others_and_is_named() {
        let folder = std::env::temp_dir().join(format!("xtask-figure-all-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (program, log) = (folder.join("xtask"), folder.join("log"));
        let text = format!("#!/bin/sh\necho $2 >> {}\n[ $2 != 4 ]\n", log.display());
        crate::process::script(&program, &text);
        let error =
            run_by(&program, &Options { quick: true, ..Options::default() }, Some("no driver")).unwrap_err();
        assert!(error.to_string().starts_with("figures that failed: 4; go on with: "), "{error}");
        assert!(error.to_string().ends_with("figure all --quick --resume"), "{error}");
        assert_eq!(fs::read_to_string(&log).unwrap(), "3\n5\n4\n1\n2\n");
        fs::write(&log, "").unwrap();
        let hook = Some("ssh switch ./counters".to_owned());
        let error =
            run_by(&program, &Options { counters_hook: hook, ..Options::default() }, None).unwrap_err();
        let again = "figure all --resume --counters-hook 'ssh switch ./counters'";
        assert!(error.to_string().ends_with(again), "a shell takes it: {error}");
        assert_eq!(fs::read_to_string(&log).unwrap(), "3\n5\n4\n1\n2\n6\n7\n");
        fs::remove_dir_all(folder).unwrap();
    }
}
