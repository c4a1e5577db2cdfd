//! Two ends and a link on a virtual clock, for tests here and above.
