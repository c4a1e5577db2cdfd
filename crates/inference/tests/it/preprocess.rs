//! Images become inputs on the twin as on the CPU, and images that cannot be are refused.

use inference::engine::preprocess::on_twin;
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

#[test]
fn the_kernel_makes_the_input_that_the_cpu_makes() {
    measure::need!(compiler(), "a C++ compiler");
    let mut compared = 0;
    for (height, width) in [(224, 224), (256, 341), (500, 546), (37, 300), (300, 37), (1, 1), (2, 700)] {
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
                let found = on_twin(&preprocess, &image, [height as u32, width as u32]).unwrap();
                assert_eq!(found.is_some(), wanted.is_some(), "{preprocess:?} of {height}x{width}");
                for (found, wanted) in found.iter().flatten().zip(wanted.iter().flatten()) {
                    assert!(
                        (found - wanted).abs() < 1e-5,
                        "{preprocess:?} of {height}x{width}: {found}, not {wanted}"
                    );
                    compared += 1;
                }
            }
        }
    }
    assert!(compared > 100_000, "{compared} elements");
}

#[test]
fn extents_that_an_image_cannot_have_are_refused_and_nothing_beyond_it_is_read() {
    measure::need!(compiler(), "a C++ compiler");
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
        assert_eq!(on_twin(&preprocess, &image, extents).unwrap(), None, "{extents:?}");
    }
    assert!(on_twin(&preprocess, &image, [40, 50]).unwrap().is_some());
    // As many bytes, another shape: an image.
    assert!(on_twin(&preprocess, &image, [50, 40]).unwrap().is_some());
}
