//! What is written for a small program, and what groff makes of its pages and bash of its completions.

use std::process::{Command as Process, Output};

use clap::{Arg, Command};
use measure::need;

use super::*;

/// No dash in its name: clap_complete 4.6.11 then loses its commands in bash. Ours with commands have none.
fn program() -> Command {
    let loss =
        || Arg::new("loss").long("loss").value_name("P").help("Probability, 0 to 1, that a packet is lost.");
    let ctl = Command::new("ctl")
        .about("Ask a NIC.")
        .subcommand(Command::new("set").about("Change it.").arg(loss()));
    let hidden = Command::new("hidden").hide(true);
    Command::new("nic").about("A NIC for tests.").disable_help_subcommand(true).subcommands([ctl, hidden])
}

fn scratch(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("manual-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    folder
}

fn words(text: &str) -> Vec<OsString> {
    text.split_whitespace().map(OsString::from).collect()
}

#[test]
fn a_program_gets_a_page_for_each_command_and_completions_for_each_shell() {
    let share = scratch("files");
    let mut written: Vec<String> = write(program(), &share)
        .unwrap()
        .iter()
        .map(|path| path.strip_prefix(&share).unwrap().display().to_string())
        .collect();
    written.sort();
    assert_eq!(
        written,
        [
            "bash-completion/completions/nic.bash",
            "fish/vendor_completions.d/nic.fish",
            "man/man1/nic-ctl-set.1",
            "man/man1/nic-ctl.1",
            "man/man1/nic.1",
            "zsh/site-functions/_nic",
        ]
    );
    let page = fs::read_to_string(share.join("man/man1/nic-ctl-set.1")).unwrap();
    assert!(page.contains("Probability, 0 to 1, that a packet is lost."), "{page}");
    fs::remove_dir_all(share).unwrap();
}

#[test]
fn only_the_first_argument_asks_for_the_manual_and_it_takes_one_folder() {
    let share = scratch("asked");
    let asked = |text: &str| asked(program(), words(text));
    assert!(asked("p").is_none() && asked("p run -- p --write-manual /x").is_none());
    for (text, why) in [
        ("p --write-manual", "--write-manual: give the folder"),
        ("p --write-manual a b", "takes one folder, and no further option: \"b\""),
        ("p --write-manual /dev/null", "writing /dev/null/man/man1: "),
    ] {
        let error = asked(text).unwrap().unwrap_err().to_string();
        assert!(error.contains(why), "{text}: {error}");
    }
    assert_eq!(asked(&format!("p --write-manual {}", share.display())).unwrap().unwrap().len(), 6);
    fs::remove_dir_all(share).unwrap();
}

#[test]
fn bash_completes_options_of_a_command_below_a_command() {
    let share = scratch("bash");
    write(program(), &share).unwrap();
    let script = share.join("bash-completion/completions/nic.bash");
    // The function that bash calls is the word behind -F.
    let ask = r#"source "$0"; named=$(complete -p nic); named=${named#*-F }; COMP_CWORD=3
        COMP_WORDS=(nic ctl set --l); ${named%% *} nic --l set; echo "${COMPREPLY[@]}""#;
    let said = Process::new("bash").args(["-c", ask]).arg(&script).output().unwrap();
    assert_eq!(text(&said), "--loss\n");
    fs::remove_dir_all(share).unwrap();
}

#[test]
fn groff_renders_each_page_without_a_warning() {
    let groff = Process::new("groff").arg("--version").output().map(drop).map_err(|error| error.to_string());
    need!(groff, groff, "groff");
    let share = scratch("groff");
    write(program(), &share).unwrap();
    for page in fs::read_dir(share.join(PAGES)).unwrap().flatten() {
        let said =
            Process::new("groff").args(["-man", "-ww", "-z", "-Kutf8"]).arg(page.path()).output().unwrap();
        assert_eq!(text(&said), "", "{}", page.path().display());
    }
    fs::remove_dir_all(share).unwrap();
}

fn text(said: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr))
}
