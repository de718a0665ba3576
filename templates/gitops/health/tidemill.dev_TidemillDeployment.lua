-- Health of a TidemillDeployment in Argo CD: argocd-cm, resource.customizations.health.tidemill.dev_TidemillDeployment
-- Healthy once the plan in Git is carried out. Flux needs no such script: it reads the same conditions of any kind.
local status = obj.status or {}
local health = { status = "Progressing", message = "the controller has not seen this plan yet" }
if status.observedGeneration ~= obj.metadata.generation then
  return health
end
for _, condition in ipairs(status.conditions or {}) do
  if condition.type == "Stalled" and condition.status == "True" then
    return { status = "Degraded", message = condition.message }
  end
  if condition.type == "Ready" then
    health.message = condition.message
    if condition.status == "True" then
      health.status = "Healthy"
    end
  end
end
return health
