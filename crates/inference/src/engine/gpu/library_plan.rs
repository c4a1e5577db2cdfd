//! Plans of the libraries that were found: what each of them has for a convolution or a product, and what is
//! written down of it.

use std::ops::Range;
use std::sync::Arc;

use gpu::cublaslt::{CublasLt, Product, ProductPlan};
use gpu::cudnn::{self, Arithmetic, Convolution, ConvolutionPlan, Cudnn};

use super::convolution::{im2col, product};
use super::library::Library;
use super::limits::WORKSPACE;
use crate::plan::arena::ALIGNMENT;

/// Plans for one convolution, those that the library recommends first.
const MOST_PLANS: usize = 20;

/// The libraries that were found, in a context.
#[derive(Debug, Default)]
pub struct Present {
    pub cudnn: Option<Cudnn>,
    pub cublaslt: Option<CublasLt>,
}

/// What a library has for a step, before it is made ready to run.
pub enum Candidate {
    Convolution(cudnn::Candidate),
    /// With the bytes of the rows that have to be written for it, if it does not read the tensor itself.
    Product(ProductPlan, Option<usize>),
}

/// A library's plan that is ready to run.
#[derive(Debug, Clone)]
pub enum LibraryPlan {
    Convolution(Arc<ConvolutionPlan>, Box<Convolution>),
    /// The im2col matrix's range in the workspace, in bytes, behind the product's own part. `None`: the
    /// product reads the tensor itself.
    Product(Arc<ProductPlan>, Option<Range<usize>>),
}

impl Present {
    pub fn is_none(&self) -> bool {
        self.cudnn.is_none() && self.cublaslt.is_none()
    }

    /// The libraries with their versions, or that there is none of one.
    pub fn versions(&self) -> gpu::Result<String> {
        let none = || Ok("none".to_owned());
        let cudnn = self.cudnn.as_ref().map_or_else(none, Cudnn::version)?;
        let cublaslt = self.cublaslt.as_ref().map_or_else(none, CublasLt::version)?;
        Ok(format!("{} {cudnn}, {} {cublaslt}", Library::Cudnn, Library::CublasLt))
    }

    /// What each library has that computes this, with no more than [`WORKSPACE`] where it can be told so. A
    /// library that computes no such thing is left out.
    pub fn candidates(&self, wanted: &Convolution) -> Vec<(Library, gpu::Result<Vec<Candidate>>)> {
        let mut all = Vec::new();
        if let Some(cudnn) = &self.cudnn {
            let found = cudnn.candidates(wanted);
            let each =
                |found: Vec<_>| found.into_iter().take(MOST_PLANS).map(Candidate::Convolution).collect();
            all.push((Library::Cudnn, found.map(each)));
        }
        if let Some((cublaslt, (product, rows))) = self.cublaslt.as_ref().zip(product_or_im2col(wanted)) {
            let found = match WORKSPACE.checked_sub(rows.unwrap_or(0)) {
                Some(left) => cublaslt.candidates(&product, left),
                None => Ok(Vec::new()),
            };
            let each = |found: Vec<_>| found.into_iter().map(|plan| Candidate::Product(plan, rows)).collect();
            all.push((Library::CublasLt, found.map(each)));
        }
        all
    }

    /// Makes a candidate for a convolution ready to run, which may compile kernels.
    pub fn plan(&self, candidate: Candidate, wanted: &Convolution) -> gpu::Result<LibraryPlan> {
        Ok(match candidate {
            Candidate::Convolution(candidate) => {
                let plan = candidate.plan(self.cudnn()?)?;
                LibraryPlan::Convolution(Arc::new(plan), Box::new(wanted.clone()))
            }
            Candidate::Product(plan, rows) => LibraryPlan::product(plan, rows),
        })
    }

    /// The plan that [`LibraryPlan::text`] wrote. Error: it is no plan for this here.
    pub fn read(&self, library: Library, wanted: &Convolution, text: &[u8]) -> gpu::Result<LibraryPlan> {
        Ok(match library {
            Library::Cudnn => {
                LibraryPlan::Convolution(Arc::new(self.cudnn()?.read(text)?), Box::new(wanted.clone()))
            }
            Library::CublasLt => {
                let both = self.cublaslt.as_ref().zip(product_or_im2col(wanted));
                let (cublaslt, (product, rows)) = both.ok_or_else(|| missing(library))?;
                LibraryPlan::product(cublaslt.read(&product, text)?, rows)
            }
        })
    }

    fn cudnn(&self) -> gpu::Result<&Cudnn> {
        self.cudnn.as_ref().ok_or_else(|| missing(Library::Cudnn))
    }
}

/// A convolution as a product of matrices; bytes of the rows it reads unless they are the tensor's own.
fn product_or_im2col(of: &Convolution) -> Option<(Product, Option<usize>)> {
    if let Some(product) = product(of) {
        return Some((product, None));
    }
    let product = im2col(of)?;
    let element = if product.arithmetic == Arithmetic::Half { 2 } else { 4 };
    let bytes = product.rows.checked_mul(product.inputs)?.checked_mul(element)?;
    Some((product, Some(usize::try_from(bytes).ok()?)))
}

fn missing(library: Library) -> gpu::Error {
    gpu::Error::Refused(format!("{library} does not compute this here"))
}

impl Candidate {
    pub fn name(&self) -> String {
        match self {
            Candidate::Convolution(candidate) => candidate.name().to_owned(),
            Candidate::Product(plan, None) => plan.name(),
            Candidate::Product(plan, Some(_)) => format!("im2col, {}", plan.name()),
        }
    }
}

impl LibraryPlan {
    fn product(plan: ProductPlan, rows: Option<usize>) -> LibraryPlan {
        let begin = plan.workspace().next_multiple_of(ALIGNMENT);
        LibraryPlan::Product(Arc::new(plan), rows.map(|bytes| begin..begin + bytes))
    }

    /// Where the rows of `im2col` lie in the workspace, if the plan reads such.
    pub fn rows(&self) -> Option<&Range<usize>> {
        match self {
            LibraryPlan::Convolution(..) => None,
            LibraryPlan::Product(_, rows) => rows.as_ref(),
        }
    }

    pub fn library(&self) -> Library {
        match self {
            LibraryPlan::Convolution(..) => Library::Cudnn,
            LibraryPlan::Product(..) => Library::CublasLt,
        }
    }

    /// Bytes that it needs beside its tensors.
    pub fn workspace(&self) -> usize {
        match self {
            LibraryPlan::Convolution(plan, _) => plan.workspace(),
            LibraryPlan::Product(plan, rows) => rows.as_ref().map_or(plan.workspace(), |rows| rows.end),
        }
    }

    /// The plan, for [`Present::read`]. Error: the library does not write it down.
    pub fn text(&self) -> gpu::Result<Vec<u8>> {
        match self {
            LibraryPlan::Convolution(plan, _) => plan.text(),
            LibraryPlan::Product(plan, _) => Ok(plan.text()),
        }
    }
}
