"""Everything that serves the papers but is not one of them. Commands, each `python -m tools.NAME`:

    extract     features of video files             encoders, backbones, i3d, resnet, video
    show        figures, curves, a page of runs     figures, page
    grounding   attention against the truth
    results     tables and logs of published runs   course, papers (tables of the documents)
    exercise    exercises that grade themselves     labs, errata, grader
    annotate    a paper's file as a page            trace (shapes of tensors)

On the right are the files that only this command needs. train.py and evaluate.py use the others:

    runs        what a run is, and the contract with a paper's file
    flags       the command line of train.py -> a run
    datasets    captions and labels, as their authors publish them
    checkpoints, log, scores    what a run leaves on the disk
    machine     device, threads, locks, files that are replaced as a whole
    java        the process that computes METEOR and splits captions into words
    caption     captions for a user's own videos
    word2vec    initial values of the word embedding
"""
import shapes  # noqa: F401, imported first, so that Ctrl-C during imports prints one line
