//! A line of ansible's hosts, what it lacks, and how a program is started there.

use super::*;

/// As `ansible/hosts.yml` writes it, with changes.
pub fn line(changes: &[(&str, serde_json::Value)]) -> String {
    let mut host = serde_json::json!({
        "name": "a", "host": "a.example", "connection": "ssh", "ssh": "ssh", "options": "  ", "ssh_port": "", "user": "",
        "key": "", "become": false, "become_method": "sudo", "become_user": "root", "address": "192.0.2.1", "port": "18515",
        "sys": "/sys", "device": "", "prefix": "/opt/doorbell", "programs": "",
    });
    changes.iter().for_each(|(name, value)| host[*name] = value.clone());
    host.to_string()
}

fn words(command: &Command) -> String {
    let words = [command.get_program()].into_iter().chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_program_is_started_as_ansible_logs_in() {
    let two = format!("# a\n{}\n\n{}\n", line(&[]), line(&[("name", "b".into())]));
    let [host, other] = parse(&two).unwrap();
    assert_eq!((host.name.as_str(), other.name.as_str()), ("a", "b"));
    assert_eq!(
        words(&host.command(&["echo", "a b"]).unwrap()),
        "ssh -o BatchMode=yes -o ConnectTimeout=10 a.example echo 'a b'"
    );
    let all = line(&[
        ("ssh", "/bed/ssh".into()),
        ("options", " -o 'A=b c' -F x ".into()),
        ("ssh_port", "2222".into()),
        ("user", "me".into()),
        ("key", "/k".into()),
        ("become", true.into()),
    ]);
    let host: Host = serde_json::from_str(&all).unwrap();
    let command = host.command(&["true"]).unwrap();
    assert_eq!(command.get_args().nth(1).unwrap(), "A=b c");
    assert_eq!(
        words(&command),
        "/bed/ssh -o A=b c -F x -o BatchMode=yes -o ConnectTimeout=10 -p 2222 -l me -i /k a.example sudo -n -u root true"
    );
    let host: Host = serde_json::from_str(&line(&[("options", "'".into())])).unwrap();
    assert!(host.command(&["true"]).unwrap_err().to_string().contains("no words of a shell"));
}

#[test]
fn what_an_inventory_lacks_is_named() {
    let b = line(&[("name", "b".into())]);
    let with = |name: &str, value: serde_json::Value| format!("{}\n{b}", line(&[(name, value)]));
    for (text, words) in [
        ("# nobody\n".to_owned(), &["no group `nodes`"][..]),
        (b.clone(), &["has 1 of the two hosts", ": b"]),
        (format!("{b}\n{b}\n{b}"), &["has 3 of the two hosts", "b, b, b"]),
        (with("address", "".into()), &["a has no experiment_address"]),
        (with("connection", "local".into()), &["a is reached by `local`"]),
        (with("device", "mlx5_0".into()), &["give both an experiment_device"]),
        (
            format!("{}\n{b}", line(&[("become", true.into()), ("become_method", "su".into())])),
            &["a has ansible_become_method su"],
        ),
    ] {
        let Err(Fault::Inventory(why)) = parse(&text) else { panic!("{text}") };
        assert!(words.iter().all(|word| why.contains(word)), "{words:?}: {why}");
    }
    assert!(matches!(parse("{}"), Err(Fault::Line(_))));
}
