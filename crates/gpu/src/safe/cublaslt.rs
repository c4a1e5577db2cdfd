//! Products of matrices by cuBLASLt: rows times weights, with a bias and a Relu behind it.
//!
//! Follows `cublasLt.h` of CUDA 13. A product is executed into a stream, which may be recorded into a graph.
//! Parts of a sum are added in a fixed order and in single precision, or the algorithm is left out. An
//! algorithm can be written down for the same version of the library. The library is found when the program
//! runs.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::context::Context;
use super::cudnn::{Arithmetic, Pointers};
use super::discarded::Discarded;
use super::stream::Stream;
use crate::result::cublaslt::{Addresses, Algorithm, Descriptor, Library, Matrices, compute, element, name};
use crate::result::{Error, Result};

/// The variable that names the library, or its folder.
pub const VARIABLE: &str = "DOORBELL_CUBLASLT";
/// The library's name.
const NAME: &str = "libcublasLt.so.13";
/// Algorithms that the library is asked for.
const MOST_ALGORITHMS: usize = 16;
/// `CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE`, beside which a sum in one piece is always allowed.
const REDUCTION: u32 = 2;
/// `CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME`, and how many such settings there are.
const REDUCTION_SETTING: i32 = 3;
const SETTINGS: i32 = 9;
/// `CUBLASLT_NUMERICAL_IMPL_FLAGS_TENSOR_OP_MASK`.
const TENSOR_CORES: u64 = 0xfe;
/// Weights and biases begin at multiples of so many bytes.
const CONSTANTS: u32 = 16;

/// Rows of `inputs` numbers times weights, of which each output has a row: rows of `outputs` numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Product {
    pub arithmetic: Arithmetic,
    pub rows: u64,
    pub inputs: u64,
    pub outputs: u64,
    /// Elements from a row that is read to the next, and from a row that is written.
    pub strides: [i64; 2],
    /// What is read, and what is written, begins at a multiple of so many bytes.
    pub alignments: [u32; 2],
    pub bias: bool,
    pub relu: bool,
}

impl Product {
    /// Rows, columns and stride as the library counts them, column by column: the weights, which it
    /// transposes, what is read, and what is written. A row here is a column there.
    fn layouts(&self) -> [(u64, u64, i64); 3] {
        let [from, to] = self.strides;
        [
            (self.inputs, self.outputs, self.inputs as i64),
            (self.inputs, self.rows, from),
            (self.outputs, self.rows, to),
        ]
    }

    /// `cublasLtEpilogue_t`.
    fn epilogue(&self) -> u32 {
        match (self.bias, self.relu) {
            (false, false) => 1,
            (false, true) => 2,
            (true, false) => 4,
            (true, true) => 6,
        }
    }

    fn matrices(&self, library: &Library, bias: u64) -> Result<Matrices> {
        let (compute, element) = match self.arithmetic {
            Arithmetic::Single => (compute::SINGLE, element::FLOAT),
            Arithmetic::Tf32 => (compute::FAST_TF32, element::FLOAT),
            Arithmetic::Half => (compute::SINGLE, element::HALF),
        };
        // `CUBLAS_OP_T`.
        let product = library.product(compute)?.int(name::PRODUCT_TRANSPOSE_A, 1)?;
        let product = product.int(name::PRODUCT_EPILOGUE, self.epilogue())?;
        let product = if self.bias { product.long(name::PRODUCT_BIAS_POINTER, bias)? } else { product };
        let layout = |(rows, columns, stride)| library.layout(element, rows, columns, stride);
        let [a, b, to] = self.layouts();
        Ok(Matrices { product, a: layout(a)?, b: layout(b)?, to: layout(to)? })
    }

    /// What an algorithm may need and do.
    fn preference(&self, library: &Library, workspace: usize) -> Result<Descriptor> {
        let [from, to] = self.alignments;
        let preference = library.preference()?.long(name::PREFERENCE_WORKSPACE, workspace as u64)?;
        let preference = preference.int(name::PREFERENCE_REDUCTIONS, REDUCTION)?;
        let preference = preference.int(name::PREFERENCE_ALIGNMENT_A, CONSTANTS)?;
        let preference = preference.int(name::PREFERENCE_ALIGNMENT_B, from)?;
        let preference = preference.int(name::PREFERENCE_ALIGNMENT_C, to)?;
        let preference = preference.int(name::PREFERENCE_ALIGNMENT_D, to)?;
        let allowed = if self.arithmetic == Arithmetic::Single { !TENSOR_CORES } else { u64::MAX };
        preference.long(name::PREFERENCE_IMPLEMENTATIONS, allowed)
    }
}

/// cuBLASLt in one context.
#[derive(Clone)]
pub struct CublasLt(Arc<Handle>);

struct Handle {
    library: Library,
    context: Context,
    raw: *mut std::ffi::c_void,
}

// SAFETY: cuBLASLt's handles may be used by any thread, by several at a time.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        let (library, raw) = (self.library.clone(), self.raw);
        // SAFETY: it is this value's own, and ends once, when nothing runs that uses it, in its context.
        let end = move || unsafe { library.destroy(raw) };
        self.context.discard(Discarded::Handle(Box::new(end)));
    }
}

impl fmt::Debug for CublasLt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CublasLt({})", self.path().display())
    }
}

/// Finds the library that is given, or that [`VARIABLE`] names, or the system's.
fn library(given: Option<&Path>) -> Result<Library> {
    let library = Library::load(&super::cudnn::file(given, VARIABLE, NAME))?;
    super::cudnn::of_major("cuBLASLt", library.path(), library.version()?, 13)?;
    Ok(library)
}

impl CublasLt {
    /// The library that is given, or that [`VARIABLE`] names, or the system's. Errors name what was looked
    /// at.
    pub fn new(context: &Context, given: Option<&Path>) -> Result<CublasLt> {
        let library = library(given)?;
        context.enter()?;
        // SAFETY: the context is current, and is again where the handle is ended.
        let raw = unsafe { library.create() }?;
        context.keep();
        Ok(CublasLt(Arc::new(Handle { library, context: context.clone(), raw })))
    }

    /// The library's file.
    pub fn path(&self) -> &Path {
        self.0.library.path()
    }

    /// The version, as `13.1.0`.
    pub fn version(&self) -> Result<String> {
        Ok(super::cudnn::in_words(self.0.library.version()?))
    }

    /// The algorithms for a product that need no more than so many bytes of workspace, those that the library
    /// recommends first. None if it has none for it.
    pub fn candidates(&self, product: &Product, workspace: usize) -> Result<Vec<ProductPlan>> {
        let Handle { library, context, raw } = &*self.0;
        context.enter()?;
        // The library takes a bias's alignment from its address, and reads nothing there.
        let matrices = product.matrices(library, u64::from(CONSTANTS))?;
        let preference = product.preference(library, workspace)?;
        // SAFETY: the handle is this library's, in the context that is current.
        let all = unsafe { library.algorithms(*raw, &matrices, &preference, MOST_ALGORITHMS) }?;
        Ok(all.iter().map(|one| self.plan(product, one.algorithm, one.workspace)).collect())
    }

    /// The plan that [`ProductPlan::text`] wrote. Errors: the text is of another version of the library or
    /// for another GPU, or is no algorithm.
    pub fn read(&self, product: &Product, text: &[u8]) -> Result<ProductPlan> {
        let wrong = |why| Error::Refused(format!("cuBLASLt: a kept algorithm {why}"));
        let algorithm = algorithm(text).ok_or_else(|| wrong("has not 64 bytes"))?;
        let Handle { library, context, raw } = &*self.0;
        if library.setting(&algorithm, REDUCTION_SETTING)? & !REDUCTION != 0 {
            return Err(wrong("adds parts of a sum in another way"));
        }
        context.enter()?;
        let matrices = product.matrices(library, u64::from(CONSTANTS))?;
        // SAFETY: the handle is this library's, in the context that is current.
        let workspace = unsafe { library.check(*raw, &matrices, &algorithm) }?;
        Ok(self.plan(product, algorithm, workspace))
    }

    fn plan(&self, product: &Product, algorithm: Algorithm, workspace: usize) -> ProductPlan {
        ProductPlan { cublaslt: self.clone(), product: product.clone(), algorithm, workspace }
    }
}

fn algorithm(text: &[u8]) -> Option<Algorithm> {
    let (words, []) = text.as_chunks() else { return None };
    Some(Algorithm(words.iter().map(|&word| u64::from_le_bytes(word)).collect::<Vec<_>>().try_into().ok()?))
}

fn text(algorithm: &Algorithm) -> Vec<u8> {
    algorithm.0.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A product and the algorithm that computes it.
#[derive(Debug, Clone)]
pub struct ProductPlan {
    cublaslt: CublasLt,
    product: Product,
    algorithm: Algorithm,
    workspace: usize,
}

impl ProductPlan {
    /// The algorithm's number, and its settings by their numbers.
    pub fn name(&self) -> String {
        let setting = |at| self.cublaslt.0.library.setting(&self.algorithm, at).unwrap_or(0);
        let settings = (1..SETTINGS).map(|at| format!(" {at}={}", setting(at)));
        format!("algorithm {}{}", setting(0), settings.collect::<String>())
    }

    /// Bytes that it needs beside its matrices.
    pub fn workspace(&self) -> usize {
        self.workspace
    }

    /// The algorithm, for [`CublasLt::read`].
    pub fn text(&self) -> Vec<u8> {
        text(&self.algorithm)
    }

    /// Puts it into a stream, or into what the stream records.
    ///
    /// # Safety
    /// The pointers lead to matrices of the product's shapes, and to as many bytes of workspace as the plan
    /// says, which live until the stream is idle, or as long as what is recorded.
    pub unsafe fn execute(&self, stream: &Stream, pointers: &Pointers) -> Result<()> {
        let Handle { library, context, raw } = &*self.cublaslt.0;
        stream.same_context(context, "the product")?;
        context.enter()?;
        let matrices = self.product.matrices(library, pointers.bias)?;
        let Pointers { weights: a, from: b, to, workspace, .. } = *pointers;
        let (by, at) = ((&self.algorithm, self.workspace), Addresses { a, b, to, workspace });
        // SAFETY: handle and stream live, in the context that is current; the pointers are the caller's
        // promise.
        unsafe { library.multiply(*raw, &matrices, by, at, stream.handle().cast()) }
    }
}

#[cfg(test)]
mod tests {
    use measure::need;

    use super::*;

    fn example(arithmetic: Arithmetic) -> Product {
        let (strides, alignments) = ([7, 6], [4, 8]);
        Product { arithmetic, rows: 3, inputs: 5, outputs: 4, strides, alignments, bias: true, relu: true }
    }

    fn library() -> std::result::Result<Library, String> {
        let named = std::env::var_os(VARIABLE).ok_or(format!("{VARIABLE} is not set"))?;
        super::library(Some(Path::new(&named))).map_err(|error| error.to_string())
    }

    #[test]
    fn a_library_that_is_not_there_is_named() {
        let said = Library::load(Path::new("/no/such/libcublasLt.so.13")).unwrap_err().to_string();
        assert!(said.contains("cuBLASLt: /no/such/libcublasLt.so.13"), "{said}");
    }

    #[test]
    fn rows_are_the_columns_of_the_library() {
        let product = example(Arithmetic::Single);
        let number = |at: i64| (at * 7 % 11) as f32;
        let [a, b, to] = product.layouts();
        // As the library computes it: an element of row r and column c lies at r + c * stride.
        let element = |(rows, columns, stride): (u64, u64, i64), row: u64, column: u64| {
            assert!(row < rows && column < columns && stride >= rows as i64);
            row as i64 + column as i64 * stride
        };
        for (row, output) in (0..3).flat_map(|row| (0..4).map(move |output| (row, output))) {
            let sum = |at: &dyn Fn(u64) -> [i64; 2]| {
                (0..5).map(|input| at(input).map(number).iter().product::<f32>()).sum::<f32>()
            };
            let theirs = sum(&|input| [element(a, input, output), element(b, input, row) + 1]);
            let ours = sum(&|input| [(output * 5 + input) as i64, (row * 7 + input) as i64 + 1]);
            assert_eq!(theirs, ours, "row {row}, output {output}");
            assert_eq!(element(to, output, row), (row * 6 + output) as i64);
        }
    }

    #[test]
    fn what_follows_a_product_is_the_librarys_epilogue() {
        // `CUBLASLT_EPILOGUE_DEFAULT`, `_RELU`, `_BIAS` and `_RELU_BIAS`.
        for (bias, relu, epilogue) in [(false, false, 1), (false, true, 2), (true, false, 4), (true, true, 6)]
        {
            assert_eq!(Product { bias, relu, ..example(Arithmetic::Half) }.epilogue(), epilogue);
        }
    }

    #[test]
    fn an_algorithm_is_read_as_it_was_written_and_a_shorter_one_is_none() {
        let one = Algorithm([1, 2, 3, 4, 5, 6, 7, u64::MAX - 1]);
        let written = text(&one);
        assert_eq!(algorithm(&written), Some(one));
        assert_eq!((written.len(), written[8], written[56]), (64, 2, 0xfe));
        for length in [0, 8, 56, 63] {
            assert_eq!(algorithm(&written[..length]), None, "{length} bytes");
        }
        assert_eq!(algorithm(&[written, vec![0; 8]].concat()), None);
    }

    #[test]
    fn products_are_taken_by_the_library_without_a_gpu() {
        let library = need!(library(), "cuBLASLt");
        assert_eq!(library.version().unwrap()[0], 13);
        for arithmetic in [Arithmetic::Single, Arithmetic::Tf32, Arithmetic::Half] {
            let product = example(arithmetic);
            product.matrices(&library, 16).unwrap();
            product.preference(&library, 1 << 20).unwrap();
        }
        let said = library.product(compute::SINGLE).unwrap().long(name::PRODUCT_EPILOGUE, 1).unwrap_err();
        assert!(said.to_string().contains("bad parameter (7), attribute 7"), "{said}");
    }
}
