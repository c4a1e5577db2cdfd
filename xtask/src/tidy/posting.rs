//! Posting loops only post: no clock, sleep, lock, allocation or I/O between one work request and the next.
//!
//! What is measured there is the posting code (`post_ns`, figure 5). Errors end a loop, so they may allocate.

use super::{sizes, source};
use crate::workspace::Tree;

/// Files and functions of which a posting loop consists. A function that is gone is a violation too.
const LOOPS: [(&str, &[&str]); 2] = [
    ("apps/generator/src/poster.rs", &["number", "post", "poll"]),
    ("crates/rdma-shim/src/queue_pair.rs", &["try_post", "ring", "post", "post_receives", "poll"]),
];

/// The C half, all of it.
const HEADERS: [&str; 6] =
    ["doorbell.h", "doorbell_post.h", "doorbell_poll.h", "order.h", "order_host.h", "order_cuda.h"];

/// What a posting loop must not name, by what it would be: words, apart by blanks.
const FORBIDDEN: [(&str, &str); 5] = [
    ("a clock", "Instant SystemTime elapsed elapsed_ns timer clock_gettime gettimeofday rdtsc"),
    ("a sleep", "sleep usleep nanosleep yield_now sched_yield"),
    ("a lock", "Mutex RwLock lock pthread_mutex_lock pthread_spin_lock"),
    (
        "an allocation",
        "Vec vec! Box String format! to_string to_owned to_vec collect clone with_capacity \
         push malloc calloc free",
    ),
    ("I/O", "print! println! eprintln! dbg! printf fprintf"),
];

/// Looks at the functions of each loop, and at all of the header.
pub fn check(tree: &Tree) -> Vec<String> {
    let mut violations = Vec::new();
    for (path, functions) in LOOPS {
        let Some(text) = tree.get(path) else {
            violations.push(format!("{path}: holds posting loops, and is not there; tidy posting lists it"));
            continue;
        };
        let code = source::code(source::without_tests(path, text));
        let lines: Vec<&str> = code.lines().collect();
        let items = sizes::items(&code);
        for function in functions {
            let mut bodies =
                items.iter().filter(|item| (item.kind, item.name) == ("fn", *function)).peekable();
            if bodies.peek().is_none() {
                violations.push(format!("{path}:1: no `fn {function}`; tidy posting lists it"));
            }
            let numbers = bodies.flat_map(|item| item.line..item.line + item.lines);
            violations.extend(numbers.flat_map(|number| named(path, number, lines[number - 1])));
        }
    }
    for name in HEADERS {
        let path = &format!("crates/rdma-shim/include/{name}");
        match tree.get(path).map(source::code) {
            None => violations
                .push(format!("{path}: is part of posting loops, and is not there; tidy posting lists it")),
            Some(code) => {
                violations.extend(code.lines().zip(1..).flat_map(|(line, number)| named(path, number, line)));
            }
        }
    }
    violations
}

fn named<'a>(path: &'a str, number: usize, line: &'a str) -> impl Iterator<Item = String> + 'a {
    let named = source::words(&FORBIDDEN).filter(move |(word, _)| source::has_word(line, word));
    named.map(move |(word, what)| format!("{path}:{number}: `{word}` is {what}; a posting loop only posts"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHIM: (&str, &str) = (
        "crates/rdma-shim/src/queue_pair.rs",
        "fn try_post() {}\nfn ring() {}\nfn post() {}\nfn post_receives() {}\nfn poll() {}\n",
    );
    const POSTER: &str = "fn make() {\n    let all = Vec::new();\n}\nfn number() {}\nimpl A {\n    fn poll(&self) {}\n    fn post(&mut self) -> u32 {\n        BODY\n    }\n    fn clock() { Instant::now() }\n}\n";

    fn found(body: &str, header: &str) -> Vec<String> {
        let poster = POSTER.replace("BODY", body);
        let tree = Tree::of(&[
            ("apps/generator/src/poster.rs", &poster),
            SHIM,
            ("crates/rdma-shim/include/doorbell.h", header),
            ("crates/rdma-shim/include/doorbell_post.h", ""),
            ("crates/rdma-shim/include/doorbell_poll.h", ""),
            ("crates/rdma-shim/include/order.h", ""),
            ("crates/rdma-shim/include/order_host.h", ""),
            ("crates/rdma-shim/include/order_cuda.h", ""),
        ]);
        check(&tree)
    }

    #[test]
    fn release_m2_each_thing_that_is_no_posting_is_named() {
        for (line, word) in [
            ("let now = Instant::now();", "Instant"),
            ("std::thread::sleep(SHORT);", "sleep"),
            ("self.requests.lock();", "lock"),
            ("let sges = vec![sge];", "vec!"),
            ("let list: Vec<_> = Vec::new();", "Vec"),
            ("let list = requests.iter().collect();", "collect"),
            ("eprintln!();", "eprintln!"),
            ("let text = format!();", "format!"),
        ] {
            let found = found(line, "");
            let place = "apps/generator/src/poster.rs:8";
            assert!(
                found.len() == 1 && found[0].starts_with(place) && found[0].contains(word),
                "{line}: {found:?}"
            );
        }
        let header = found("", "static int db_post(void) {\n    return usleep(1);\n}\n");
        assert!(header.len() == 1 && header[0].contains("doorbell.h:2"), "{header:?}");
    }

    #[test]
    fn posting_and_what_is_made_before_pass() {
        let posting =
            "let list = &self.lists[0]; // no Vec\n        self.block(list); bail!(\"a clock: {x}\");";
        assert_eq!(found(posting, "/* sleep */ db_ring(sq);\n"), Vec::<String>::new());
    }

    #[test]
    fn a_loop_that_moved_away_is_missed() {
        let tree = Tree::of(&[("apps/generator/src/poster.rs", "fn post() {}\nfn poll() {}\n")]);
        let found: Vec<String> = check(&tree);
        assert_eq!(found.len(), 2 + HEADERS.len(), "{found:?}");
        assert!(found[0].contains("no `fn number`"), "{found:?}");
    }
}
