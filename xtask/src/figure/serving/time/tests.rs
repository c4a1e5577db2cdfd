//! What a point of figure 6 is told, offered and made of.

use std::collections::BTreeMap;

use experiment::judge;
use experiment::paper::Claim;
use experiment::verdict::Verdict;
use measure::{Label, Provenance};

use super::*;
use crate::workspace;

fn spec() -> Spec {
    Spec::read(&workspace::root().join("experiments/fig6")).unwrap()
}

/// M9: the release has the slow baseline alone.
#[test]
fn release_m9_each_model_has_both_baselines_beside_the_gpu() {
    let spec = spec();
    let series = spec.grid(Extent::Normal).series;
    let of = |model: &str| -> Vec<&str> {
        let own = series.iter().filter_map(|series| Line::of(series).ok());
        own.filter(|line| line.model == model && line.variant.is_none()).map(|line| line.driver).collect()
    };
    for model in ["super-resolution-x1", "squeezenet-1.1", "resnet50-v1.5"] {
        assert_eq!(of(model), ["faithful", "fair", "graph", "while", "ahead", "persistent"], "{model}");
    }
    for series in series.iter().filter(|series| Line::of(series).unwrap().variant != Some(FLAG)) {
        let options = server_options(&spec, series, Machine::Gpu, true).unwrap();
        let has = |word: &str| options.iter().any(|option| option == word);
        assert!(has("--trace") && has("completion"), "{series}");
    }
}

#[test]
fn open_loops_offer_all_drivers_of_a_model_the_same_rate() {
    let key = |series: &str, x, repetition| Key { series: series.into(), x, at: BTreeMap::new(), repetition };
    let point = |series: &str, repetition: u32, run_us: f64| {
        let provenance = Provenance::of(workspace::revision(), &[]);
        let mut point = Point::new("fig6", key(series, 0, repetition), Label::Emulated, provenance);
        for (step, us) in STEPS.iter().map(|step| (step, if *step == "run" { run_us } else { 10.0 })) {
            point.values.insert(format!("one_{step}_us"), us);
        }
        point
    };
    let points = [
        point("gpu-fair-m-1", 0, 400.0),
        point("gpu-graph-m-1", 0, 500.0),
        point("gpu-persistent-m-1", 0, 10_000.0),
        point("gpu-fair-m-1", 1, 400.0),
        point("gpu-fair-n", 0, 1_000.0),
    ];
    let all = ["gpu-fair-m-1", "gpu-graph-m-1", "gpu-persistent-m-1", "gpu-fair-n"].map(str::to_owned);
    let rate = |series: &str, repetition| {
        known(&all, &points, &key(series, 1, repetition)).map_err(|error| error.to_string())
    };
    // By the longer run.
    assert_eq!(rate("gpu-fair-m-1", 0), Ok(2_000.0));
    assert_eq!(rate("gpu-graph-m-1", 0), Ok(2_000.0));
    assert_eq!(rate("gpu-persistent-m-1", 0), Ok(100.0));
    assert_eq!(rate("gpu-fair-n", 0), Ok(1_000.0));
    // Without one of their runs no rate is offered to the others.
    let error = rate("gpu-fair-m-1", 1).unwrap_err();
    assert!(error.starts_with("gpu-graph-m-1: no whole point of pass 0 in repetition 1"), "{error}");
}

#[test]
fn steps_add_up_to_the_service_and_bad_answers_are_told() {
    let spec = spec();
    let key = Key { series: "gpu-graph-squeezenet-1.1".into(), x: 0, at: BTreeMap::new(), repetition: 0 };
    let mut point = Point::new("fig6", key, Label::Emulated, Provenance::of(workspace::revision(), &[]));
    let summary = |ns: u64| json!({ "p50_ns": ns, "p99_ns": 2 * ns, "mean_ns": ns as f64 });
    let steps: serde_json::Map<String, Value> =
        STEPS.iter().map(|step| ((*step).to_owned(), summary(1_000))).collect();
    let traced = json!({
        "service": summary(9_000), "attended": summary(8_000), "steps": steps, "clock_error_ns": 300, "lost": 0,
        "disordered": 1, "count": 1_000,
    });
    let run = |wrong: u64| {
        json!({
            "latency": summary(20_000), "answers_per_second": 7.0, "sent": 9,
            "reference": true, "wrong": wrong, "lost": 0, "duplicate": 0, "refused": {},
        })
    };
    for load in Load::ALL {
        fill(&mut point, load, &run(0), &traced).unwrap();
    }
    for load in Load::ALL {
        fill_limit(&mut point, load, [1.5; 2]).unwrap();
    }
    assert!((point.values["half_use"] - 7e-6).abs() < 1e-12);
    let status =
        json!({ "models": [{ "graph": { "nodes": 70, "host_nodes": 0, "host_copies": 0, "kernels": 69 } }] });
    fill_graph(&mut point, &status);
    assert_eq!((point.values["graph_nodes"], point.values["host_copies"]), (70.0, 0.0));
    // Of a series of its own.
    point.values.insert("one_flag_us".into(), 0.0);
    let missing: Vec<&String> = spec.values.iter().filter(|name| !point.values.contains_key(*name)).collect();
    assert_eq!(missing, Vec::<&String>::new());
    let claim = spec.claims.iter().find(|claim| claim.id == "no-host-node").unwrap();
    point.provenance.gpu = Label::Hardware;
    let judged = |host_nodes: f64| {
        let claim = Claim { series: vec![point.series.clone()], ..claim.clone() };
        let mut point = point.clone();
        point.values.insert("host_nodes".into(), host_nodes);
        judge(&claim, &[point]).verdict
    };
    assert_eq!([judged(0.0), judged(1.0)], [Verdict::Reproduced, Verdict::NotReproduced]);
    let one: f64 = STEPS.iter().map(|step| point.values[&format!("one_{step}_us")]).sum();
    assert_eq!((one, point.values["one_us"], point.values["one_nic_us"]), (9.0, 9.0, 11.0));
    assert_eq!((point.values["post_share"], point.values["clock_error_us"]), (0.25, 0.3));
    assert_eq!(point.missing, None);
    fill(&mut point, Load::Half, &run(2), &traced).unwrap();
    assert_eq!(point.missing.as_deref(), Some("half: 2 wrong of 9 requests"));
    let mut idle = run(0);
    idle["sent"] = 0.into();
    assert_eq!(bench::missing(&idle).as_deref(), Some("no request was due while the client ran"));
    for (field, value, why) in [
        ("disordered", 2, "full: 2 of 1000 receive completions are stamped later than they were found"),
        ("lost", 7, "full: 7 answers were not traced"),
        ("count", 0, "full: no answer was traced"),
    ] {
        let mut traced = traced.clone();
        traced[field] = value.into();
        point.missing = None;
        fill(&mut point, Load::Full, &run(0), &traced).unwrap();
        assert_eq!(point.missing.as_deref(), Some(why));
        traced.as_object_mut().unwrap().remove(field);
        let error = fill(&mut point, Load::Full, &run(0), &traced).unwrap_err().to_string();
        assert_eq!(error, format!("the server's line `traced` has no {field}"));
    }
}

#[test]
fn a_load_that_the_nic_and_not_the_server_limits_is_marked() {
    let key = |x| Key { series: "gpu-graph-m".into(), x, at: BTreeMap::new(), repetition: 0 };
    let provenance = Provenance { nic: Label::Emulated, ..Provenance::of(workspace::revision(), &[]) };
    let mut point = Point::new("fig6", key(0), Label::Emulated, provenance);
    // Steps of a request, of which the GPU runs the model for 200 us, and its time in the queue before them.
    for (load, per_s, [taken_us, queue_us], times, is_limited) in [
        (Load::Full, 3_500.0, [250.0, 20.0], [1.5, 1.5], true),
        (Load::Full, 3_700.0, [250.0, 20.0], [1.5, 1.5], false),
        // The steps take twice as long under the load: the server's own.
        (Load::Full, 1_900.0, [500.0, 20.0], [1.5, 1.5], false),
        // Requests wait for the server.
        (Load::Full, 3_500.0, [250.0, 130.0], [1.5, 1.5], false),
        (Load::Half, 1_800.0, [250.0, 20.0], [1.5, 1.5], false),
        // The load was asked to last longer than the spec says.
        (Load::Half, 1_800.0, [250.0, 20.0], [8.0, 8.1], false),
        (Load::Half, 1_800.0, [250.0, 20.0], [1.5, 1.7], true),
        // The server itself does not keep up.
        (Load::Most, 3_900.0, [250.0, 20.0], [1.5, 1.8], false),
    ] {
        let name = load.name();
        point.values.insert(format!("{name}_per_s"), per_s);
        point.values.insert(format!("{name}_use"), per_s * 200e-6);
        for step in STEPS {
            let us = match step {
                "queue" => queue_us,
                "run" => taken_us,
                _ => 0.0,
            };
            point.values.insert(format!("{name}_{step}_us"), us);
        }
        fill_limit(&mut point, load, times).unwrap();
        let found = point.values[&format!("{name}_limited")];
        assert_eq!(found != 0.0, is_limited, "{name} {per_s} {taken_us} {queue_us} {times:?}");
        let mut on_a_card = point.clone();
        on_a_card.provenance.nic = Label::Hardware;
        fill_limit(&mut on_a_card, load, times).unwrap();
        assert_eq!(on_a_card.values[&format!("{name}_limited")], 0.0);
    }
    fill_limit(&mut point, Load::One, [1.5, 9.0]).unwrap();
    assert!(!point.values.contains_key("one_limited"));
    // What waits and sends beside the model is busy while that runs.
    for (series, us) in [("gpu-graph-m", 8.0), ("gpu-ahead-m", 1.0), ("gpu-fair-m", 1.0)] {
        let mut point = Point { series: series.into(), ..point.clone() };
        point.values.extend(STEPS.map(|step| (format!("full_{step}_us"), 1.0)));
        assert_eq!(taken_us(&point, Load::Full).unwrap(), Some(us), "{series}");
    }
    // What is not known marks nothing.
    for lacking in ["full_per_s", "full_queue_us", "full_send_us"] {
        let mut point = point.clone();
        point.values.remove(lacking);
        point.values.remove("full_limited");
        fill_limit(&mut point, Load::Full, [1.5; 2]).unwrap();
        assert!(!point.values.contains_key("full_limited"), "{lacking}");
    }
    let said = said_use("gpu-graph-m", &[point]).unwrap();
    assert_eq!(
        said,
        "gpu-graph-m: use of the GPU: full 0.70, half 0.36 (NIC-limited, not judged), most 0.78"
    );
    assert_eq!(said_use("gpu-graph-n", &[]), None);
}

#[test]
fn an_open_loop_lasts_for_some_requests_and_a_point_ends_within_nine_minutes() {
    assert_eq!([0.0, 0.1, 0.5, 100.0].map(|per_s| lasts(1.5, per_s)), [1.5, LONGEST_S, 8.0, 1.5]);
    let spec = spec();
    for extent in [Extent::Normal, Extent::Quick, Extent::Full] {
        let longest = Duration::from_secs_f64(spec.grid(extent).seconds.max(LONGEST_S));
        // The client's end and the server's line are waited for as well, and once the line `status`.
        let loads = 2 * (longest + BEYOND + WAIT + WAIT) + WAIT;
        assert!(bench::BEGIN + loads + bench::END < Duration::from_secs(9 * 60), "{loads:?}");
    }
}

#[test]
fn variants_have_requests_of_their_own_and_no_open_loop() {
    let spec = spec();
    let has = |words: &[String], pair: [&str; 2]| words.windows(2).any(|two| two == pair);
    let flag = "gpu-graph+flag-squeezenet-1.1";
    let server = server_options(&spec, flag, Machine::Gpu, false).unwrap();
    assert!(has(&server, ["--mode", "gpu-graph"]) && has(&server, ["--arrival", "flag"]), "{server:?}");
    let client = client_options(&spec, flag, Load::One, [1.5, 0.0]).unwrap();
    assert!(has(&client, ["--arrival", "flag"]) && has(&client, ["--slots", "1"]), "{client:?}");
    let wide = "gpu-faithful+2000-squeezenet-1.1";
    let server = server_options(&spec, wide, Machine::Gpu, true).unwrap();
    for pair in [
        ["--warmup", "1"],
        ["--baseline", "faithful"],
        ["--slots-per-client", "2000"],
        ["--memory", "2147483648"],
    ] {
        assert!(has(&server, pair), "{pair:?}: {server:?}");
    }
    let client = client_options(&spec, wide, Load::Full, [1.5, 0.0]).unwrap();
    assert!(has(&client, ["--slots", "2000"]) && has(&client, ["--arrival", "completion"]), "{client:?}");
    let keys = spec.grid(Extent::Normal).keys();
    assert!(keys.iter().all(|key| key.x == 0 || !key.series.contains('+')));
    let (mut whole, _) = grid(&spec, Extent::Normal);
    // As on a card.
    let of_a_card = bench::leave_out(&mut whole, &is_flag, "why");
    assert_eq!(of_a_card, ["gpu-fair+flag-squeezenet-1.1", flag]);
    assert_eq!(whole.series.len() + of_a_card.len(), spec.grid(Extent::Normal).series.len());
    let (quick, left_out) = grid(&spec, Extent::Quick);
    assert!(quick.series.iter().all(|series| !series.contains('+')) && left_out.contains(&flag.to_owned()));
}

#[test]
fn a_flag_s_service_is_what_the_nic_counted_and_others_sends_make_it_no_measurement() {
    let key = Key { series: "gpu-graph+flag-m".into(), x: 0, at: BTreeMap::new(), repetition: 0 };
    let empty =
        || Point::new("fig6", key.clone(), Label::Emulated, Provenance::of(workspace::revision(), &[]));
    let run = json!({
        "latency": { "p50_ns": 900_000.0 }, "answered": 2_000, "sent": 2_000, "reference": true, "wrong": 0, "lost": 0, "duplicate": 0, "refused": {},
    });
    let mut point = empty();
    fill_by_the_nic(&mut point, &run, [7, 1_000], [2_007, 600_001_000]);
    assert_eq!(
        (point.values["one_flag_us"], point.values["one_end_us"], point.missing),
        (300.0, 900.0, None)
    );
    for (count, why) in [(1_990, "the NIC timed 1990 sends, and 2000 requests"), (0, "the NIC timed 0 sends")]
    {
        let mut point = empty();
        fill_by_the_nic(&mut point, &run, [0, 0], [count, 1]);
        assert!(point.missing.as_ref().is_some_and(|missing| missing.contains(why)), "{:?}", point.missing);
    }
}
