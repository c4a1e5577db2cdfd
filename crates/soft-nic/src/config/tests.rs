//! What a `nic.toml` may say, what it is refused for, and the normalised text.

use super::*;

#[test]
fn an_empty_file_gives_the_defaults() {
    assert_eq!(Config::parse("", "nic.toml"), Ok(Config::default()));
}

#[test]
fn a_normalised_text_reads_back_equal() {
    let full = Config {
        devices: 3,
        ports: 2,
        model: Model::ConnectX7,
        link_layer: LinkLayer::Roce,
        path: LinkPath::Wire,
        rate_gbps: Some(100.0),
        strict: false,
        doorbell_order: DoorbellOrder::Early,
        relaxed_ordering: true,
        copy_threads: CopyThreads::Auto,
        mtu: 1024,
        ipv4: Some(Ipv4Addr::new(10, 0, 0, 7)),
        ipv6: Some(Ipv6Addr::LOCALHOST),
        loss: 0.25,
        reorder: 1.0,
        seed: 9,
        cm_timeout: 31,
        cm_retries: 0,
        delay: Span(1_500_000),
        pump: true,
        fabric: "test-7".to_owned(),
        stats: Some("/tmp/with \"quotes\".json".to_owned()),
        record: Some("/tmp/run.rec".to_owned()),
    };
    for config in [Config::default(), full] {
        assert_eq!(Config::parse(&config.to_toml(), "SOFTNIC_CONFIG"), Ok(config));
    }
}

#[test]
fn every_allowed_word_is_read() {
    for model in ["cx5", "cx6", "cx6dx", "cx7"] {
        let config = Config::parse(&format!("model = \"{model}\""), "nic.toml").unwrap();
        assert_eq!(config.model.word(), model);
    }
}

#[test]
fn a_bad_value_is_refused_by_one_line_that_names_file_key_value_and_range() {
    for (text, range) in [
        ("devices = 0", "a whole number from 1 to 8"),
        ("devices = 9", "a whole number from 1 to 8"),
        ("devices = -1", "a whole number from 1 to 8"),
        ("devices = 257", "a whole number from 1 to 8"),
        ("devices = \"2\"", "a whole number from 1 to 8"),
        ("ports = 0", "1 or 2"),
        ("ports = 3", "1 or 2"),
        ("model = \"cx8\"", "\"cx5\", \"cx6\", \"cx6dx\" or \"cx7\""),
        ("link_layer = \"ethernet\"", "\"ib\" or \"roce\""),
        ("path = \"udp\"", "\"shm\", \"wire\" or \"auto\""),
        ("rate_gbps = 0", "a number from 0.001 to 1000"),
        ("rate_gbps = 1000.5", "a number from 0.001 to 1000"),
        ("rate_gbps = nan", "a number from 0.001 to 1000"),
        ("strict = 1", "true or false"),
        ("doorbell_order = \"late\"", "\"strict\" or \"early\""),
        ("relaxed_ordering = \"yes\"", "true or false"),
        ("copy_threads = 5", "a whole number from 0 to 4, or \"auto\""),
        ("copy_threads = \"many\"", "a whole number from 0 to 4, or \"auto\""),
        ("mtu = 1500", "256, 512, 1024, 2048 or 4096"),
        (
            "ipv4 = \"224.0.0.1\"",
            "a unicast IPv4 address, as \"192.168.1.10\", \
             with room for all devices after it",
        ),
        (
            "ipv4 = \"255.255.255.250\"",
            "a unicast IPv4 address, as \
             \"192.168.1.10\", with room for all devices after it",
        ),
        (
            "ipv6 = \"fe80::1\"",
            "a unicast IPv6 address that is not link-local, as \
             \"fd00::10\", with room for all devices after it",
        ),
        ("loss = 1.5", "a number from 0 to 1"),
        ("reorder = nan", "a number from 0 to 1"),
        ("seed = -1", "a whole number from 0"),
        ("cm_timeout = 32", "a whole number from 0 to 31"),
        ("cm_retries = 16", "a whole number from 0 to 15"),
        ("cm_retries = -1", "a whole number from 0 to 15"),
        ("delay = 5", "a time from \"0\" to \"1s\", as \"250us\""),
        ("delay = \"2s\"", "a time from \"0\" to \"1s\", as \"250us\""),
        ("pump = []", "true or false"),
        ("fabric = \"a b\"", "1 to 64 of the characters a-z A-Z 0-9 . _ -"),
        ("fabric = \"\"", "1 to 64 of the characters a-z A-Z 0-9 . _ -"),
        ("stats = \"\"", "a file name without control characters"),
    ] {
        let error = Config::parse(text, "nic.toml").unwrap_err().to_string();
        assert_eq!(error, format!("nic.toml: {text} is not allowed; give {range}"));
    }
}

#[test]
fn an_unknown_key_is_refused_by_one_line_that_names_the_known_ones() {
    let known = "devices, ports, model, link_layer, path, rate_gbps, strict, doorbell_order, relaxed_ordering, \
                 copy_threads, mtu, ipv4, ipv6, loss, reorder, seed, cm_timeout, cm_retries, delay, pump, \
                 fabric, stats, record";
    for (text, message) in [
        ("speed = 3", format!("nic.toml: unknown key `speed`; remove it or use one of {known}")),
        ("[link]\nrate = 3", format!("nic.toml: unknown key `link`; remove it or use one of {known}")),
    ] {
        let error = Config::parse(text, "nic.toml").unwrap_err().to_string();
        assert_eq!(error, message, "{text}");
    }
}

#[test]
fn an_options_text_becomes_what_its_key_holds() {
    let mut config = Config::default();
    for (key, text) in
        [("devices", "2"), ("rate_gbps", "99.5"), ("fabric", "7"), ("pump", "true"), ("model", "cx5")]
    {
        config.set_text(key, text, "--option").unwrap();
    }
    let expected = Config {
        devices: 2,
        rate_gbps: Some(99.5),
        fabric: "7".into(),
        pump: true,
        model: Model::ConnectX5,
        ..Config::default()
    };
    assert_eq!(config, expected);
    let error = config.set_text("devices", "many", "--devices").unwrap_err().to_string();
    assert_eq!(error, "--devices: devices = \"many\" is not allowed; give a whole number from 1 to 8");
}

#[test]
fn a_syntax_error_names_its_line_and_stays_on_one() {
    let error = Config::parse("devices = 1\nmodel = = 3\n", "nic.toml").unwrap_err().to_string();
    assert!(error.starts_with("nic.toml: line 2: not valid TOML: "), "{error}");
    assert!(!error.contains('\n'), "{error}");
    let twice = Config::parse("mtu = 256\nmtu = 512\n", "nic.toml").unwrap_err().to_string();
    assert!(twice.starts_with("nic.toml: line 2: "), "{twice}");
}

#[test]
fn copy_helpers_are_as_many_as_was_said_or_as_the_cores_allow() {
    let config = |copy_threads| Config { copy_threads, ..Config::default() };
    for (cores, helpers) in [(1, 0), (2, 0), (7, 0), (8, 1), (15, 1), (16, 2), (256, 2)] {
        assert_eq!(config(CopyThreads::Auto).copy_helpers(cores), helpers, "{cores} cores");
        assert_eq!(config(CopyThreads::Count(3)).copy_helpers(cores), 3);
    }
}
