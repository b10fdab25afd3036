"""Counts what it sees, on the server's metrics page."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.elements = pb_utils.MetricFamily(
            name="example_elements",
            description="Elements that the model has seen",
            kind=pb_utils.MetricFamily.COUNTER,
        )
        self.seen = self.elements.Metric(labels={"model": args["model_name"]})
        self.sizes = pb_utils.MetricFamily(
            name="example_sizes",
            description="Elements of each request",
            kind=pb_utils.MetricFamily.HISTOGRAM,
        )
        self.size = self.sizes.Metric(labels={}, buckets=[1.0, 10.0, 100.0])

    def execute(self, requests):
        responses = []
        for request in requests:
            data = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            self.seen.increment(data.size)
            self.size.observe(data.size)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", data)]))
        return responses
