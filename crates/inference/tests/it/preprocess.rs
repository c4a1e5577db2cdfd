//! Images become inputs on the twin and on a GPU as on the CPU, and images that cannot be are refused.

use ::gpu::{Gpu, Toolkit};
use inference::engine::gpu::Images;
use inference::engine::preprocess::{TOLERANCE, on_twin};
use zoo::preprocess::{Channels, Image, Layout, PixelOrder, Preprocess, Resize, test_image};

use crate::operators::compiler;

fn preprocessing(resize: Resize, crop: [usize; 2], channels: Channels, layout: Layout) -> Preprocess {
    let count = channels.weights().len();
    Preprocess {
        image: if layout == Layout::Nchw { PixelOrder::Bgr } else { PixelOrder::Rgb },
        resize,
        crop,
        channels,
        mean: [0.485, 0.456, 0.406][..count].to_vec(),
        deviation: [0.229, 0.224, 0.225][..count].to_vec(),
        layout,
    }
}

/// A way to make an input: `None` for an image that is refused.
type Way<'a> = &'a dyn Fn(&Preprocess, &Image, [u32; 2]) -> Option<Vec<f32>>;

/// Images of many sizes, each in every way of a manifest: the CPU function's results and refusals.
fn compare(way: Way<'_>) {
    let (mut compared, mut refused, mut worst) = (0, 0, 0.0_f32);
    // The last one is too long when its shorter edge has 64 pixels.
    for (height, width) in
        [(224, 224), (256, 341), (500, 546), (37, 300), (300, 37), (1, 1), (2, 700), (1, 2000)]
    {
        let image = test_image("kernel", height, width);
        for (resize, crop) in [
            (Resize::ShorterEdge(64), [56, 56]),
            (Resize::ShorterEdge(31), [31, 17]),
            (Resize::To([48, 300]), [47, 299]),
            (Resize::To([9, 8]), [9, 8]),
        ] {
            for (channels, layout) in [
                (Channels::Rgb, Layout::Nchw),
                (Channels::Bgr, Layout::Nhwc),
                (Channels::Luminance, Layout::Nchw),
            ] {
                let preprocess = preprocessing(resize, crop, channels, layout);
                let wanted = preprocess.run(&image).ok();
                let found = way(&preprocess, &image, [height as u32, width as u32]);
                assert_eq!(found.is_some(), wanted.is_some(), "{preprocess:?} of {height}x{width}");
                refused += usize::from(wanted.is_none());
                let pairs = found.iter().flatten().zip(wanted.iter().flatten());
                compared += found.iter().flatten().count();
                for (found, wanted) in pairs {
                    let apart = (found - wanted).abs();
                    assert!(apart < TOLERANCE, "{preprocess:?} of {height}x{width}: {found}, not {wanted}");
                    worst = worst.max(apart);
                }
            }
        }
    }
    println!(
        "TABLE {compared} elements, the worst {worst:.1e}, {TOLERANCE:.0e} is allowed; {refused} images refused"
    );
    assert!(compared > 100_000 && refused > 0, "{compared} elements, {refused} images");
}

/// Extents that the image has not are refused.
fn refuse(way: Way<'_>) {
    let preprocess = preprocessing(Resize::ShorterEdge(64), [56, 56], Channels::Rgb, Layout::Nchw);
    let image: Image = test_image("extents", 40, 50);
    for extents in [
        [0, 50],
        [40, 0],
        [41, 50],
        [40, 51],
        [u32::MAX, 1],
        [u32::MAX, u32::MAX],
        [1 << 31, 1 << 31],
        [70_000, 1],
    ] {
        assert_eq!(way(&preprocess, &image, extents), None, "{extents:?}");
    }
    assert!(way(&preprocess, &image, [40, 50]).is_some());
    // As many bytes, another shape: an image.
    assert!(way(&preprocess, &image, [50, 40]).is_some());
}

#[test]
fn the_kernel_makes_the_input_that_the_cpu_makes() {
    measure::need!(compiler(), "a C++ compiler");
    compare(&|preprocess, image, extents| on_twin(preprocess, image, extents).unwrap());
}

#[test]
fn extents_that_an_image_cannot_have_are_refused_and_nothing_beyond_it_is_read() {
    measure::need!(compiler(), "a C++ compiler");
    refuse(&|preprocess, image, extents| on_twin(preprocess, image, extents).unwrap());
}

#[test]
fn gpu_images_become_the_input_that_the_cpu_makes() {
    let gpu = measure::need!(Gpu::first(), "one CUDA device");
    let images = Images::new(gpu, Toolkit::find(None).unwrap()).unwrap();
    let way: Way<'_> = &|preprocess, image, extents| images.input(preprocess, image, extents).unwrap();
    compare(way);
    refuse(way);
}
