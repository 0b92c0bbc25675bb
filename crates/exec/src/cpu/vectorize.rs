//! Loops compiled several times, for the widest vectors that the machine at hand turns out to have.

/// Defines a function whose body is compiled for AVX-512, for AVX2 with FMA, and for the target's baseline; a call
/// picks one by what pulp detects. The parameter says whether fused multiply-adds are single instructions there.
/// Whatever the body calls must be `#[inline(always)]`, or it would be compiled for the baseline only.
macro_rules! vectorized {
    ($(
        $(#[$meta:meta])*
        $vis:vis fn $name:ident<const $fma:ident: bool>($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block
    )*) => {$(
        $(#[$meta])*
        $vis fn $name($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn body<const $fma: bool>($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
            fn avx512($($arg: $ty),*) $(-> $ret)? {
                body::<true>($($arg),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
            fn avx2($($arg: $ty),*) $(-> $ret)? {
                body::<true>($($arg),*)
            }

            match pulp::Arch::new() {
                // SAFETY: `Arch::new` returns V4 only after it has detected every feature enabled for `avx512`.
                #[cfg(target_arch = "x86_64")]
                pulp::Arch::V4(_) => unsafe { avx512($($arg),*) },
                // SAFETY: `Arch::new` returns V3 only after it has detected every feature enabled for `avx2`.
                #[cfg(target_arch = "x86_64")]
                pulp::Arch::V3(_) => unsafe { avx2($($arg),*) },
                // 64-bit ARM has the instruction in its baseline.
                _ => body::<{ cfg!(target_arch = "aarch64") }>($($arg),*),
            }
        }
    )*};
}

pub(super) use vectorized;
