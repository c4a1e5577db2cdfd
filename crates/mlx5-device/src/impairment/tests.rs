//! Which packets are lost, and when a carrier needs no impairment.

use super::*;

fn impairment(loss: f64, seed: u64) -> Impairment {
    let config = NicConfig { loss, seed, ..NicConfig::default() };
    Impairment {
        sender: Sender { is_requester: true, ..Sender::default() },
        ..Impairment::new(&config, Now(0))
    }
}

/// Which of so many packets are lost.
fn lost(impairment: &mut Impairment, count: u32) -> Vec<bool> {
    let mut is_lost = || {
        let verdict = impairment.decide(|_| false);
        impairment.charge(0, true);
        verdict == Verdict::Lost
    };
    (0..count).map(|_| is_lost()).collect()
}

#[test]
fn losses_have_their_rate_and_come_again_with_their_seed_and_address() {
    // Six standard deviations of a binomial distribution.
    for (loss, least, most) in
        [(0.0, 0, 0), (0.01, 812, 1188), (0.5, 49_052, 50_948), (1.0, 100_000, 100_000)]
    {
        let mut impairment = impairment(loss, 7);
        let count = lost(&mut impairment, 100_000).iter().filter(|lost| **lost).count() as u64;
        assert!((least..=most).contains(&count), "{loss}: {count}");
        assert_eq!(impairment.counts.injected_lost_requests, count);
    }
    let of = |seed| lost(&mut impairment(0.1, seed), 1000);
    assert_eq!(of(3), of(3));
    assert_ne!(of(3), of(4));
    let there = NicConfig { loss: 0.1, seed: 3, ipv4: [10, 0, 0, 1].into(), ..NicConfig::default() };
    let at_start = lost(&mut Impairment::new(&there, Now(0)), 1000);
    assert_ne!(at_start, of(3), "another address");
    let mut running = Impairment::new(&NicConfig { seed: 4, ..there }, Now(0));
    running.set(&Settings { seed: Some(3), ..Settings::default() }, Now(0));
    assert_eq!(lost(&mut running, 1000), at_start, "a seed means the same in a configuration and later");
}

#[test]
fn reads_behind_an_idle_time_have_their_pace() {
    let mut impairment = impairment(0.0, 1);
    let pace = Settings { messages_per_second: Some(Some(1e3)), ..Settings::default() };
    impairment.set(&pace, Now(0));
    impairment.now = Now(10_000_000_000);
    let waits = [(); 3].map(|()| impairment.delay_answer(7).0.saturating_sub(impairment.now.0));
    assert_eq!(waits, [1, 1_000_001, 2_000_001], "a full bucket is one message");
}

#[test]
fn what_finds_no_room_draws_nothing() {
    let [mut one, mut other] = [(); 2].map(|()| impairment(0.5, 7));
    let mut came = Vec::new();
    for _ in 0..1000 {
        // The carrier said three times that it is full.
        let verdicts = [(); 3].map(|()| other.decide(|_| false));
        assert_eq!(verdicts, [verdicts[0]; 3]);
        other.charge(0, true);
        came.push(verdicts[0] == Verdict::Lost);
    }
    assert_eq!(came, lost(&mut one, 1000));
}

#[test]
fn without_anything_to_do_the_carrier_is_used_as_it_is() {
    let mut impairment = impairment(0.0, 1);
    assert!(!impairment.acts());
    let none = Settings::default();
    for (asked, lifted) in [
        (Settings { loss: Some(0.1), ..none }, Settings { loss: Some(0.0), ..none }),
        (Settings { reorder: Some(0.1), ..none }, Settings { reorder: Some(0.0), ..none }),
        (Settings { rate_gbps: Some(Some(1.0)), ..none }, Settings { rate_gbps: Some(None), ..none }),
        (
            Settings { messages_per_second: Some(Some(1.0)), ..none },
            Settings { messages_per_second: Some(None), ..none },
        ),
    ] {
        impairment.set(&asked, Now(0));
        assert!(impairment.acts(), "{asked}");
        impairment.set(&lifted, Now(0));
        assert!(!impairment.acts(), "{lifted}");
    }
    impairment.toggle(0);
    assert!(impairment.acts() && impairment.is_down(0));
}
