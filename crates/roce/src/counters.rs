//! Counters that are declared once: their fields, their names and their sum.

/// Counts so many more. 64 bits last for ever: a step is one instruction, and with a check of overflow four.
#[inline(always)]
pub const fn count(counter: &mut u64, more: u64) {
    *counter = counter.wrapping_add(more);
}

/// Declares a struct of plain counters, each named by a prefix and its field, and of others beside them.
#[macro_export]
macro_rules! counters {
    (
        $(#[$about:meta])* $counters:ident [$plain:ident $prefix:literal] { $($(#[$doc:meta])* $name:ident,)* }
        $($other:ident: $type:ty,)*
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, PartialEq, Eq, Default)]
        pub struct $counters {
            $($(#[$doc])* pub $name: u64,)*
            $($other: $type,)*
        }

        impl $counters {
            /// Every plain counter with its name.
            pub fn $plain(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((concat!($prefix, stringify!($name)), self.$name),)*].into_iter()
            }
        }

        impl core::ops::AddAssign<&$counters> for $counters {
            /// Adds the plain counters.
            fn add_assign(&mut self, more: &$counters) {
                $(self.$name += more.$name;)*
            }
        }
    };
}
