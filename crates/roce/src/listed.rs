//! Enums that know all their variants.

/// Declares an enum, and the list of its variants in their order.
macro_rules! listed {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident $(= $number:literal)?,)* }) => {
        $(#[$about])*
        pub enum $name { $($(#[$doc])* $variant $(= $number)?,)* }

        impl $name {
            pub const ALL: [$name; [$(stringify!($variant)),*].len()] = [$($name::$variant),*];
        }
    };
}
