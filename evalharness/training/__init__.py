"""What training loops call: engines that follow a trainer's weights, and the interfaces of two other systems on top of `Engine`."""

from evalharness.engine.weights import WeightSync as WeightSync
from evalharness.tool_calls import ToolCall as ToolCall
from evalharness.training.delayed import (
    DelayedTraining as DelayedTraining,
    TrainerDevices as TrainerDevices,
    allocate_devices as allocate_devices,
)
from evalharness.training.inference_module import (
    EngineBackend as EngineBackend,
    GenerationResult as GenerationResult,
    HuggingFaceBackend as HuggingFaceBackend,
    InferenceBackend as InferenceBackend,
    InferenceModule as InferenceModule,
    InferenceResult as InferenceResult,
    ToolCallParser as ToolCallParser,
    VLLMBackend as VLLMBackend,
    create_inference_module as create_inference_module,
)
from evalharness.training.trainer_engine import (
    InferenceEngine as InferenceEngine,
    MAXLocalEngine as MAXLocalEngine,
    MAXServeEngine as MAXServeEngine,
    OpenAIEngine as OpenAIEngine,
    PyTorchEngine as PyTorchEngine,
    SampleResult as SampleResult,
    TrainerEngine as TrainerEngine,
    VLLMEngine as VLLMEngine,
    create_engine as create_engine,
    register_engine as register_engine,
)
