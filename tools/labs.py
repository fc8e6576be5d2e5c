"""The exercises of `python -m tools.exercise`, lab by lab

The order is one in which they can be solved one after another: the tests of each exercise need no
function of a later one.
"""
import ast
from dataclasses import dataclass


@dataclass
class Exercise:
    lab: int                # section of docs/COURSE.md
    place: str              # file.function or file.Class.method
    equation: str
    level: str              # easy, medium or hard
    minutes: int
    task: str               # what to fill in
    tests: tuple            # of tests/test_<file>.py, without `test_`

    @property
    def file(self):
        return f'{self.place.split(".")[0]}.py'


def definition(source, place):
    """source code, 'file.function', 'file.Class' or 'file.Class.method' -> its node"""
    node = ast.parse(source)
    for part in place.split('.')[1:]:
        node, = [child for child in node.body if getattr(child, 'name', None) == part]
    return node


LOOP = 'loss_and_gradients_are_those_of_the_plain_loop'
DESCRIBE = "captioner_equals_the_loop_over_its_equations[{'variant': 'soft'}-grid0]"
RECOGNISE = "recogniser_equals_the_loop_over_its_equations[{'variant': 'soft'}-grid0]"
DRAWN = 'with_a_fixed_captioner_an_arg_max_key_moves_the_module_by_exactly_0[drawn-True]'
EXERCISES = {
    'word-logp': Exercise(
        1, 'decode.word_logp', '-', 'easy', 10, 'a log-softmax in which <pad> is impossible',
        ('teacher_forcing_equals_a_loop_over_single_rows_and_is_zero_after_the_end',
         'pad_is_impossible_and_the_other_words_share_its_probability')),
    'generate': Exercise(
        1, 'decode.generate', '-', 'medium', 25, 'the loop that writes captions word by word',
        ('samples_follow_the_distribution_and_stop_at_eos',)),
    'greedy': Exercise(
        1, 'decode.greedy', '-', 'easy', 5, 'the most probable word at every step',
        ('greedy_takes_the_most_probable_word_at_every_step',)),
    'beam': Exercise(
        1, 'decode.beam', '-', 'hard', 60, 'beam search for all videos at once',
        ('beam_search_equals_a_list_based_one', 'a_wide_beam_finds_the_best_caption_of_all',
         'an_unfinished_caption_is_returned_if_none_has_finished',
         'greedy_equals_a_beam_of_one_and_its_replay')),
    'cider': Exercise(
        1, 'evaluate.CiderD.one', '-', 'hard', 40, 'CIDEr-D of one caption',
        ('cider_d_equals_pycocoevalcap',)),
    'penalty': Exercise(
        2, 'sta.doubly_stochastic', '2.7', 'easy', 10, 'the penalty on the attention',
        ('penalty_by_hand', 'penalty_has_a_lower_bound_that_only_equal_totals_reach')),
    'look': Exercise(
        2, 'sta.Recogniser.look', '2.4-2.5', 'easy', 10, 'attention to the places of a frame',
        (RECOGNISE,)),
    'location': Exercise(
        2, 'sta.Captioner.look', '3.2', 'medium', 20, 'attention to all places of all frames',
        ('the_location_softmax_runs_over_all_places_of_all_frames',)),
    'gate': Exercise(
        2, 'sta.Captioner.step', '3.1-3.5', 'medium', 30, 'one word: look, gate, LSTM, output',
        (DESCRIBE, DESCRIBE.replace("'variant': 'soft'", "'gate': False, 'layers': 1"))),
    'attention': Exercise(
        3, 'stats.Attention.forward', '2', 'easy', 10, 'the scores of additive attention',
        ('attention_scores_equal_equation_2',)),
    'rank-loss': Exercise(
        3, 'stats.rank_loss', '6-7', 'medium', 15, 'the ranking loss of frames in their order',
        ('rank_loss_by_hand',)),
    'ts': Exercise(
        3, 'stats.TimeThenSpace.forward', '9-11', 'medium', 25, 'one frame, then a place in it',
        ('ts_equals_the_plain_loop',)),
    'mix': Exercise(
        3, 'stats.Visual.forward', '12', 'medium', 20, 'ST alone, TS alone, or their mixture',
        (f'{LOOP}[st-ranked-grid]', f'{LOOP}[ts-mean-grid]', f'{LOOP}[stats-mean-grid]',
         'the_mix_is_even_in_the_first_epochs_of_training_and_starts_from_one_half')),
    'reinforce': Exercise(
        3, 'stats.reinforce', 'Sec. 3.4', 'easy', 10, 'a loss with the policy gradient',
        ('reinforce_is_unbiased_by_enumeration_and_a_baseline_lowers_its_variance',)),
    'receptive-field': Exercise(
        4, 'c3d.receptive_field', 'tables 4, 5', 'medium', 30, 'stride, first and last place seen',
        ('receptive_fields_worked_by_hand', 'aligned_maps_share_stride_and_centre_and_are_nested')),
    'align': Exercise(
        4, 'astar.Convolution.forward', '3', 'easy', 15, 'convolution, ReLU and maximum',
        ('the_convolution_equals_a_loop_over_equation_3',)),
    'network': Exercise(
        4, 'c3d.C3D.__init__', 'fig. 3', 'medium', 25, "C3D's layers and their initial weights",
        ('maps_have_the_printed_sizes_for_any_number_of_frames', 'fc7_is_the_mean_over_windows',
         'the_receptive_field_is_what_autograd_measures')),
    'layers': Exercise(
        4, 'astar.Captioner.attend', '4-8', 'medium', 25, 'attention to places, then to layers',
        ('attention_equals_a_loop_over_its_equations',
         'hard_attention_takes_the_mode_at_test_time_and_draws_in_training')),
    'vimco': Exercise(
        4, 'astar.vimco', '12-16', 'hard', 60, 'the bound, and a gradient with a baseline',
        ('vimco_is_exactly_unbiased_and_its_baseline_lowers_the_variance',
         'vimco_equals_a_loop_over_the_equations')),
    'kbigru': Exercise(
        5, 'vre.KBiGRU.read', '5-6', 'medium', 20, 'a GRU that reads outwards from the key frame',
        ('kbigru_equals_a_plain_loop_for_every_key_with_and_without_padding',)),
    'refocus-loss': Exercise(
        5, 'vre.refocus_loss', '21', 'hard', 30, 'what moves alpha if the reward rises or falls',
        ('alpha_rises_with_the_reward_and_falls_with_it_even_from_exactly_1',)),
    'drawn-key': Exercise(
        5, 'vre.Captioner.watch', '9-11', 'hard', 60, 'both steps, with keys drawn from alpha',
        ('algorithm_1_line_by_line_and_its_gradient', DRAWN,
         'the_mean_gradient_of_drawn_keys_is_that_of_all_pairs_of_keys')),
}
